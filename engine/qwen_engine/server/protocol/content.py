"""The content of a message: text, and the pictures and videos that stand in it.

Called by `chat` for each message. What is to be fetched is only named here; `server.media` gets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.errors import InvalidMediaError, RequestError
from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.vision.media import MediaKind

# A template wants the parts in their order; without pictures it gets one text.
Content = str | list[dict[str, str]]

_DETAILS = ("auto", "low", "high")
_FRAMES = "data:video/jpeg;base64,"  # frames one after the other, as vLLM's clients send them


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """One picture or video, as the request names it.

    Attributes:
        item: the request's field, for errors.
        urls: one; or the pictures that a video's frames are.
        is_frames: it is a video, and the urls are its frames.
        fps: of the frames, if the client says it.
    """

    kind: MediaKind
    item: str
    urls: tuple[str, ...]
    detail: str = "auto"
    is_frames: bool = False
    fps: float | None = None


def parse_content(
    fields: Fields, *, is_optional: bool, takes_media: bool
) -> tuple[Content, list[MediaRef]]:
    """Read `content`: a text, or an array of parts.

    Raises:
        RequestError: neither, or a part that cannot be.
    """
    content = fields.value("content")
    if isinstance(content, str):
        return content, []
    if content is None:
        if is_optional:
            return "", []
        raise fields.error("content", "must be a string or an array of parts, not null")
    if not isinstance(content, list):
        why = f"must be a string or an array of parts, not {describe(content)}"
        raise fields.error("content", why)
    path = fields.param("content")
    parts = [
        _parse_part(Fields(part, f"{path}[{index}]"), takes_media=takes_media)
        for index, part in enumerate(content)
    ]
    media = [part for part in parts if isinstance(part, MediaRef)]
    if media:
        return [_template_part(part) for part in parts], media
    # One line each, as vLLM joins them (entrypoints/chat_utils.py).
    return "\n".join(part for part in parts if isinstance(part, str)), []


def text_of(content: Content) -> str:
    """Return the text of a content, without its pictures."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def parse_multi_modal_data(fields: Fields) -> tuple[MediaRef, ...]:
    """Read `multi_modal_data` of a completion: addresses by kind, one or an array of them."""
    data = fields.object("multi_modal_data")
    if data is None:
        return ()
    inner = Fields(data, fields.param("multi_modal_data"))
    refs = [*_listed(inner, "image"), *_listed(inner, "video")]
    if unknown := inner.ignored():
        raise inner.error(unknown[0].rpartition(".")[2], "is not known: image and video are")
    return tuple(refs)


def parse_processor_settings(fields: Fields) -> Mapping[str, Any] | None:
    """Read `mm_processor_kwargs`, whose fields are checked against the model's settings later."""
    return fields.object("mm_processor_kwargs") or None


def refuse_media(refs: Sequence[MediaRef], changes: Mapping[str, Any] | None) -> None:
    """Raise RequestError if there are any: this model cannot see."""
    why = "this server answers about text only: its model has no vision tower, or it is not loaded"
    if refs:
        raise InvalidMediaError(refs[0].item, why)
    if changes:
        raise RequestError(f"mm_processor_kwargs: {why}", param="mm_processor_kwargs")


def _template_part(part: str | MediaRef) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": part.kind}


def _parse_part(fields: Fields, *, takes_media: bool) -> str | MediaRef:
    kind = fields.string("type")
    if kind in ("text", "refusal"):
        text = fields.string(kind)
        if text is None:
            raise fields.error(kind, "is missing")
        return text
    if kind not in _READERS:
        known = ", ".join(("text", "refusal", *_READERS))
        raise fields.error("type", f"must be one of {known}, not {describe(kind)}")
    if not takes_media:
        raise fields.error("type", f"cannot be {kind!r} in a message of the assistant")
    return _READERS[kind](fields)


def _read_image(fields: Fields) -> MediaRef:
    inner, name, url = _address(fields, "image_url")
    detail = (inner.string("detail") if inner else None) or "auto"
    if inner and detail not in _DETAILS:
        known = ", ".join(_DETAILS)
        raise inner.error("detail", f"must be one of {known}, not {describe(detail)}")
    return MediaRef(kind="image", item=name, urls=(url,), detail=detail)


def _read_video(fields: Fields) -> MediaRef:
    _, name, url = _address(fields, "video_url")
    return _video(url, name)


def _read_frames(fields: Fields) -> MediaRef:
    """Read a video that is a list of pictures (qwen-vl-utils, vision_process.py, fetch_video)."""
    frames = fields.array("video")
    if not frames:
        raise fields.error("video", "must be an array of frames, as addresses of pictures")
    for index, frame in enumerate(frames):
        if not isinstance(frame, str):
            raise fields.error(f"video[{index}]", f"must be a string, not {describe(frame)}")
    fps = fields.number("fps", low=0.001, high=1000)
    item = fields.param("video")
    return MediaRef(kind="video", item=item, urls=tuple(frames), is_frames=True, fps=fps)


_READERS = {"image_url": _read_image, "video_url": _read_video, "video": _read_frames}


def _address(fields: Fields, name: str) -> tuple[Fields | None, str, str]:
    """Return the object around an address, if there is one, the address's own name, and it."""
    value = fields.value(name)
    if isinstance(value, str):
        return None, fields.param(name), value
    if value is None:
        raise fields.error(name, "is missing")
    inner = Fields(value, fields.param(name))
    url = inner.string("url")
    if not url:
        raise inner.error("url", "is missing: an https or data address is needed")
    return inner, inner.param("url"), url


def _video(url: str, item: str) -> MediaRef:
    if url[: len(_FRAMES)].lower() != _FRAMES:
        return MediaRef(kind="video", item=item, urls=(url,))
    frames = tuple(f"data:image/jpeg;base64,{frame}" for frame in url[len(_FRAMES) :].split(","))
    return MediaRef(kind="video", item=item, urls=frames, is_frames=True)


def _listed(fields: Fields, kind: MediaKind) -> list[MediaRef]:
    value = fields.value(kind)
    if value is None:
        return []
    urls = value if isinstance(value, list) else [value]
    refs = []
    for index, url in enumerate(urls):
        name = f"{kind}[{index}]" if isinstance(value, list) else kind
        if not isinstance(url, str):
            raise fields.error(name, f"must be an address, not {describe(url)}")
        item = fields.param(name)
        refs.append(_video(url, item) if kind == "video" else
                    MediaRef(kind="image", item=item, urls=(url,)))  # fmt: skip
    return refs
