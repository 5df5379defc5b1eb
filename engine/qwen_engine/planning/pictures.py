"""How large pictures and videos may be, how many a request may have, and what is kept of them.

Chosen here for our own engine, with the reason; `picture_fit` makes them smaller where the context
needs the memory. The settings are vLLM's: `limit_mm_per_prompt`, `mm_processor_kwargs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import InvalidDemandError
from qwen_engine.planning.shape import ModelShape
from qwen_engine.planning.vision import VisionShape

KINDS = ("image", "video")
# Tokens of the largest picture that is planned: on a CPU, where a picture's patches all attend to
# each other, 1,024 of 1024 × 1024 pixels are some seconds and the published 16,384 are minutes.
_MOST_ON_CPU = 1024
# Below these no picture is planned: 1024 × 1024 pixels of Qwen3-VL, on a CPU 512 × 512.
_LEAST, _LEAST_ON_CPU = 1024, 256
LEAST_USEFUL = 64  # 256 × 256, what published processors enlarge smaller pictures to
_MOST_ITEMS = 999  # vLLM's own limit of pictures in a request


@dataclass(frozen=True, slots=True)
class Pictures:
    """The largest picture and video, in tokens, and how many of them a request may have.

    Attributes:
        image_tokens: of the largest picture; 0: none are taken. Likewise video_tokens.
        images: pictures of the largest size for which there is to be room in one request.
        cache_tokens: as demanded; None: as many as a request needs.
        least_tokens: planned sizes are not made smaller; None: they are demanded.
        limits: pictures and videos of a request, as demanded.
    """

    image_tokens: int
    video_tokens: int
    images: int
    videos: int
    reason: str
    cache_tokens: int | None = None
    least_tokens: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def largest_tokens(self) -> int:
        return max(self.image_tokens, self.video_tokens)

    @property
    def is_counted(self) -> bool:
        """There is to be room for a demanded number of the largest size."""
        return _asks_for_several(self.limits)

    @property
    def request_tokens(self) -> int:
        """Tokens of the pictures and videos of one request, all of the largest size."""
        if not self.is_counted:
            return self.largest_tokens
        return self.images * self.image_tokens + self.videos * self.video_tokens

    def kept_tokens(self, max_model_len: int) -> int:
        """Return the tokens of the encoder cache: the pictures of one request must fit into it.

        They are never more than its context, and half of that unless so many are demanded.
        """
        if self.cache_tokens is not None:
            return self.cache_tokens
        if self.is_counted:
            return max(self.largest_tokens, min(self.request_tokens, max_model_len))
        return max(self.largest_tokens, max_model_len // 2)

    def at_most(self, tokens: int, reason: str) -> Pictures:
        """Return these, no larger than so many tokens each."""
        return replace(
            self,
            image_tokens=min(self.image_tokens, tokens),
            video_tokens=min(self.video_tokens, tokens),
            reason=reason,
        )

    def smaller(self) -> Iterator[Pictures]:
        """Yield ever smaller ones, each half of the one before, and at last the smallest.

        The last are the same whatever the first: what fits at a length fits at every shorter one.
        """
        tokens = self.largest_tokens
        while self.least_tokens is not None and tokens > self.least_tokens:
            tokens = max(tokens // 2, self.least_tokens)
            yield self.at_most(
                tokens, f"the most of which {self._how_many} leaves half of the context to text"
            )

    @property
    def _how_many(self) -> str:
        count = _count(self.limits)
        return "one" if count == 1 else f"a request of {count}"


def choose_pictures(
    model: ModelShape, device: Device, demands: Demands, *, context: int
) -> Pictures | None:
    """Return what to take at best in a context of so many tokens; None: text only.

    Raises:
        InvalidDemandError: pictures are demanded of a model without a vision tower, or a demand
            cannot be met whatever the memory.
    """
    limits = _limits(demands)
    if model.vision is None:
        _refuse_pictures(demands)
        return None
    images, videos = (limits.get(kind, 1) for kind in KINDS)
    if not images and not videos:
        return None
    found = _with_sizes(model.vision, device, demands, context // (2 * _count(limits)))
    found = replace(
        found,
        image_tokens=found.image_tokens if images else 0,
        video_tokens=found.video_tokens if videos else 0,
        images=images,
        videos=videos,
        limits=limits,
        cache_tokens=demands.encoder_cache_tokens,
    )
    if found.cache_tokens is not None and found.cache_tokens < found.largest_tokens:
        if found.least_tokens is None or found.cache_tokens < LEAST_USEFUL:
            raise InvalidDemandError(
                "encoder_cache_tokens",
                found.cache_tokens,
                f"the largest picture or video has {found.largest_tokens:,} tokens",
            )
        found = found.at_most(found.cache_tokens, "as large as the encoder cache")
    return found


def picture_limits(pictures: Pictures, *, kept_tokens: int) -> dict[str, int]:
    """Return `limit_mm_per_prompt`: what is not demanded is what the encoder cache can hold."""
    sizes = {"image": LEAST_USEFUL, "video": pictures.video_tokens}
    largest = {"image": pictures.image_tokens, "video": pictures.video_tokens}
    return {
        kind: pictures.limits.get(
            kind, min(_MOST_ITEMS, max(1, kept_tokens // sizes[kind])) if largest[kind] else 0
        )
        for kind in KINDS
    }


def processor_kwargs(vision: VisionShape, pictures: Pictures, demands: Demands) -> dict[str, Any]:
    """Return `mm_processor_kwargs`: what is demanded, and the bounds that are planned.

    None is above what the checkpoint's own processor takes: who plans without its files, as the
    operator does, cannot know that bound.
    """
    given = dict(demands.mm_processor_kwargs or {})
    image, video = _pixels(given)
    if image is None and pictures.image_tokens:
        image = pictures.image_tokens * vision.token_pixels
        given["max_pixels"] = min(image, vision.image_pixels)
    elif image is not None and image > vision.image_pixels:
        given.pop("size", None)
        given.pop("images_kwargs", None)
        given["max_pixels"] = vision.image_pixels
    if video is None and pictures.video_tokens:
        video = pictures.video_tokens * vision.token_pixels * vision.temporal_patch_size
    if video is not None:
        videos = dict(given.get("videos_kwargs") or {})
        bound = min(video, vision.video_pixels)
        videos["size"] = {**(videos.get("size") or {}), "longest_edge": bound}
        given["videos_kwargs"] = videos
    return given


def image_pixels(demands: Demands) -> int | None:
    """Return the demanded bound of a picture."""
    return _pixels(demands.mm_processor_kwargs or {})[0]


def sizes_demand(vision: VisionShape, demands: Demands, tokens: int) -> Demands:
    """Return the demands with pictures and videos bounded to so many tokens each."""
    bounded = Pictures(tokens, tokens, 1, 1, "")
    given = dict(demands.mm_processor_kwargs or {})
    for name in ("max_pixels", "size", "images_kwargs", "videos_kwargs"):
        given.pop(name, None)
    without = replace(demands, mm_processor_kwargs=given)
    return replace(demands, mm_processor_kwargs=processor_kwargs(vision, bounded, without))


def _limits(demands: Demands) -> Mapping[str, int]:
    limits = demands.limit_mm_per_prompt or {}
    for kind, count in limits.items():
        if kind not in KINDS:
            raise InvalidDemandError(
                "limit_mm_per_prompt", kind, f"there are {' and '.join(KINDS)}, nothing else"
            )
        if count < 0:
            raise InvalidDemandError("limit_mm_per_prompt", f"{kind}={count}", "must be 0 or more")
    return limits


def _asks_for_several(limits: Mapping[str, int]) -> bool:
    return "image" in limits or limits.get("video", 0) > 1


def _count(limits: Mapping[str, int]) -> int:
    several = _asks_for_several(limits)
    return max(1, sum(limits.get(kind, 1) for kind in KINDS)) if several else 1


def _refuse_pictures(demands: Demands) -> None:
    problem = "this model has no vision tower: leave it out"
    if any((demands.limit_mm_per_prompt or {}).values()):
        raise InvalidDemandError("limit_mm_per_prompt", demands.limit_mm_per_prompt, problem)
    for name in ("mm_processor_kwargs", "encoder_cache_tokens"):
        if getattr(demands, name):
            raise InvalidDemandError(name, getattr(demands, name), problem)


def _with_sizes(vision: VisionShape, device: Device, demands: Demands, share: int) -> Pictures:
    """Return sizes as demanded, else as large as the share of the context and the device allow."""
    image, video = _pixels(demands.mm_processor_kwargs or {})
    on_cpu = device.kind == "cpu"
    tokens = max(vision.largest_image_tokens, vision.largest_video_tokens)
    reason = "as large as the checkpoint's processor takes"
    if image is not None or video is not None:
        image_tokens = min(
            _tokens(image, vision.token_pixels) or vision.largest_image_tokens,
            vision.largest_image_tokens,
        )
        each = vision.token_pixels * vision.temporal_patch_size
        video_tokens = min(
            _tokens(video, each) or vision.largest_video_tokens, vision.largest_video_tokens
        )
        if image is not None and video is None:
            video_tokens = min(video_tokens, image_tokens)
        elif image is None:
            image_tokens = min(image_tokens, video_tokens)
        reason = "as demanded"
        if (image or 0) > vision.image_pixels or (video or 0) > vision.video_pixels:
            reason = "more are demanded than the checkpoint's own processor takes"
        return Pictures(image_tokens, video_tokens, 1, 1, reason)
    least = _LEAST_ON_CPU if on_cpu else _LEAST
    bound = max(share, least)
    if bound < tokens:
        tokens, reason = bound, "leaves half of the context to text"
    if on_cpu and tokens > _MOST_ON_CPU:
        tokens = _MOST_ON_CPU
        reason = (
            f"on a CPU {vision.largest_image_tokens * vision.merge:,} patches that all attend to "
            "each other take minutes; larger pictures are made smaller"
        )
    return Pictures(
        min(tokens, vision.largest_image_tokens), min(tokens, vision.largest_video_tokens),
        1, 1, reason, least_tokens=least,
    )  # fmt: skip


def _tokens(pixels: int | None, each: int) -> int | None:
    return None if pixels is None else max(1, pixels // each)


def _pixels(kwargs: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the demanded bounds in pixels, of pictures and of all frames of a video."""
    images, videos = (_object(kwargs, f"{kind}s_kwargs") for kind in KINDS)
    image = None
    for source in (images, kwargs):
        for value in (source.get("max_pixels"), _object(source, "size").get("longest_edge")):
            image = value if image is None else image
    video = _object(videos, "size").get("longest_edge")
    for value in (image, video):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidDemandError("mm_processor_kwargs", value, "pixels are a whole number")
        if value is not None and value < 1:
            raise InvalidDemandError("mm_processor_kwargs", value, "must be at least 1 pixel")
    return image, video


def _object(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = source.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidDemandError("mm_processor_kwargs", {name: value}, "must be an object")
    return value
