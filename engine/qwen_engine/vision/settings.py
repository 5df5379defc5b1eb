"""How a checkpoint wants its pictures: sizes, frames and pixel values.

Read once from the model's folder, changed by `mm_processor_kwargs` of the server or of a request.
Field names and defaults are those of transformers 5.24 models/qwen3_vl and models/qwen2_vl.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from qwen_engine.errors import InvalidRequestError, ModelError

LOW_DETAIL_PIXELS = 512 * 512  # what OpenAI scales a picture of detail "low" to


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """Bounds of sizes in pixels, of a video over all its frames together."""

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    video_min_pixels: int = 4_096
    video_max_pixels: int = 25_165_824
    fps: float = 2.0  # frames taken per second of a video
    num_frames: int | None = None  # taken of a video, instead of `fps`
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False

    @property
    def factor(self) -> int:
        """Sides of pictures are multiples of this."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read preprocessor_config.json and video_preprocessor_config.json.

        Transformers 5 writes both into processor_config.json; what is in neither has the
        published checkpoints' values.

        Raises:
            ModelError: a file cannot be read, or a value cannot be.
        """
        both = _read(folder / "processor_config.json")
        image = _read(folder / "preprocessor_config.json") or both.get("image_processor", {})
        video = _read(folder / "video_preprocessor_config.json") or both.get("video_processor", {})
        changes: dict[str, Any] = {}
        try:
            for name in _SHARED:
                if image.get(name) is not None:
                    changes[name] = _whole(image[name], name)
            for name in ("mean", "std"):
                if (values := image.get(f"image_{name}")) is not None:
                    changes[name] = tuple(float(value) for value in values)
            changes |= _image_changes(image, "preprocessor")
            changes |= _video_changes(video, "video_preprocessor")
        except (InvalidRequestError, TypeError, ValueError) as error:
            raise ModelError(f"{folder}: the processor's settings cannot be: {error}") from error
        return cls(**changes)

    def changed(self, overrides: Mapping[str, Any] | None, *, param: str) -> Self:
        """Return the settings with `mm_processor_kwargs` applied.

        min_pixels, max_pixels and size mean pictures; fps, num_frames, min_frames and max_frames
        mean videos; either kind's may also stand under images_kwargs and videos_kwargs.

        Raises:
            InvalidRequestError: an unknown name or a value that cannot be; it names `param`.
        """
        if not overrides:
            return self
        if not isinstance(overrides, Mapping):
            raise InvalidRequestError(param, overrides, "must be an object")
        for_images = dict(_nested(overrides, "images_kwargs", param))
        for_videos = dict(_nested(overrides, "videos_kwargs", param))
        for name, value in overrides.items():
            if name in _IMAGE_FIELDS:
                for_images.setdefault(name, value)
            elif name in _VIDEO_FIELDS:
                for_videos.setdefault(name, value)
            elif name not in ("images_kwargs", "videos_kwargs"):
                raise _unknown(param, name, (*_IMAGE_FIELDS, *_VIDEO_FIELDS))
        changes = {**_image_changes(for_images, param, strict=True),
                   **_video_changes(for_videos, param, strict=True)}  # fmt: skip
        result = replace(self, **changes)
        result._check(param)
        return result

    def within(self, server: ProcessorSettings, *, param: str) -> Self:
        """Return the settings if they need no more memory than the server's.

        Raises:
            InvalidRequestError: a bound is above what the server has planned for.
        """
        for name in ("max_pixels", "video_max_pixels", "max_frames"):
            value, limit = getattr(self, name), getattr(server, name)
            if value > limit:
                raise InvalidRequestError(
                    f"{param}.{name.removeprefix('video_')}", value,
                    f"this server takes at most {limit} (--mm-processor-kwargs)",
                )  # fmt: skip
        return self

    def with_detail(self, detail: str) -> Self:
        """Return the settings for OpenAI's `detail`; only "low" changes anything."""
        if detail != "low":
            return self
        limit = min(self.max_pixels, LOW_DETAIL_PIXELS)
        return replace(self, max_pixels=limit, min_pixels=min(self.min_pixels, limit))

    def _check(self, param: str) -> None:
        bounds = (
            ("min_pixels", self.min_pixels, self.max_pixels),
            ("size.shortest_edge", self.video_min_pixels, self.video_max_pixels),
            ("min_frames", self.min_frames, self.max_frames),
        )
        for name, low, high in bounds:
            if low > high:
                raise InvalidRequestError(f"{param}.{name}", low, f"is above the maximum of {high}")


_SHARED = ("patch_size", "temporal_patch_size", "merge_size")
_IMAGE_FIELDS = ("min_pixels", "max_pixels", "size")
_VIDEO_FIELDS = ("fps", "num_frames", "min_frames", "max_frames", "size", "cap_pixels_per_frame")
_EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


def _image_changes(
    source: Mapping[str, Any], param: str, *, strict: bool = False
) -> dict[str, Any]:
    if strict:
        _refuse_unknown(source, _IMAGE_FIELDS, f"{param}.images_kwargs")
    changes = _edges(source.get("size"), param)
    for name in ("min_pixels", "max_pixels"):
        if source.get(name) is not None:
            changes[name] = _whole(source[name], f"{param}.{name}")
    return changes


def _video_changes(
    source: Mapping[str, Any], param: str, *, strict: bool = False
) -> dict[str, Any]:
    if strict:
        _refuse_unknown(source, _VIDEO_FIELDS, f"{param}.videos_kwargs")
    changes: dict[str, Any] = {
        f"video_{name}": value for name, value in _edges(source.get("size"), param).items()
    }
    for name in ("num_frames", "min_frames", "max_frames"):
        if source.get(name) is not None:
            changes[name] = _whole(source[name], f"{param}.{name}")
    if (fps := source.get("fps")) is not None:
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
            raise InvalidRequestError(f"{param}.fps", fps, "must be above 0 and at most 1000")
        changes["fps"] = float(fps)
    if (cap := source.get("cap_pixels_per_frame")) is not None:
        if not isinstance(cap, bool):
            raise InvalidRequestError(f"{param}.cap_pixels_per_frame", cap, "must be true or false")
        changes["cap_pixels_per_frame"] = cap
    return changes


def _edges(size: object, param: str) -> dict[str, Any]:
    if size is None:
        return {}
    if not isinstance(size, Mapping):
        raise InvalidRequestError(f"{param}.size", size, "must be an object")
    _refuse_unknown(size, tuple(_EDGES), f"{param}.size")
    return {
        _EDGES[name]: _whole(value, f"{param}.size.{name}")
        for name, value in size.items() if value is not None
    }  # fmt: skip


def _nested(overrides: Mapping[str, Any], name: str, param: str) -> Mapping[str, Any]:
    value = overrides.get(name, {})
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{param}.{name}", value, "must be an object")
    return value


def _refuse_unknown(source: Mapping[str, Any], known: tuple[str, ...], param: str) -> None:
    for name in source:
        if name not in known:
            raise _unknown(param, name, known)


def _unknown(param: str, name: str, known: tuple[str, ...]) -> InvalidRequestError:
    names = ", ".join(dict.fromkeys(known))
    return InvalidRequestError(f"{param}.{name}", name, f"is not known: {names} are")


def _whole(value: object, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**40:
        raise InvalidRequestError(param, value, "must be a whole number of at least 1")
    return value


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return parsed
