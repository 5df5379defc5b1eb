"""Videos, or lists of their frames, to patches, with PyAV.

Frames are chosen and timed as transformers 5.24 models/qwen3_vl does (`sample_frames`,
`_calculate_timestamps`); they are turned upright and brought to size one by one, so that a long
video is never in memory as a whole. Sound is ignored. Called by the server in a thread of its own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import av
import numpy as np
from PIL import Image

from qwen_engine.errors import InvalidMediaError
from qwen_engine.vision.images import MAX_PIXELS, Pixels, cut, decode, on_white, open_image, resize
from qwen_engine.vision.media import Media, media_key
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.sizes import RatioError, video_size

# Containers that cannot name other files: a playlist could make the server read its own disk.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,gif,avi"
# Five minutes of 1920×1080 at 30 frames per second; every frame before a chosen one is decoded.
MAX_DECODED_PIXELS = 20_000_000_000
UNKNOWN_FPS = 24.0  # as upstream


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What a container says of its video."""

    num_frames: int
    fps: float
    width: int
    height: int


def process_video(data: bytes, settings: ProcessorSettings, *, item: str) -> Media:
    """Decode a video's chosen frames and cut them into patches.

    Raises:
        InvalidMediaError: no video, no frames, a damaged one, or one that is too large.
    """
    try:
        facts = _read_facts(data, item)
        wanted = choose_frames(facts.num_frames, facts.fps, settings)
        pictures = list(_decode_frames(data, wanted, settings, item))
        if len(pictures) < len(wanted):  # containers may promise frames that are never shown
            facts = VideoFacts(_count_shown(data, item), facts.fps, facts.width, facts.height)
            wanted = choose_frames(facts.num_frames, facts.fps, settings)
            pictures = list(_decode_frames(data, wanted, settings, item))
    except (av.error.FFmpegError, ValueError) as error:
        raise InvalidMediaError(item, f"is not a video that can be decoded: {error}") from error
    form = ("video", facts.width, facts.height)
    key = media_key("video", [data], form=form, settings=settings)
    times = [index / facts.fps for index in wanted]
    return _media(pictures, times, key, settings)


def process_frames(
    frames: Sequence[bytes], settings: ProcessorSettings, *, item: str, fps: float | None = None
) -> Media:
    """Take encoded pictures as the frames of a video, all of them, `fps` a second.

    Without fps they count as sampled at the settings' rate, as qwen-vl-utils takes them.

    Raises:
        InvalidMediaError: none, too many, or one that cannot be read.
    """
    if not 0 < len(frames) <= settings.max_frames:
        raise InvalidMediaError(
            item, f"a list of {len(frames)} frames; 1 to {settings.max_frames} are taken"
        )
    names = [f"{item}[{index}]" for index in range(len(frames))]
    opened = [open_image(x, item=name) for x, name in zip(frames, names, strict=True)]
    size: tuple[int, int] | None = None
    pictures = []
    for image, name in zip(opened, names, strict=True):
        picture = decode(image, item=name)
        size = size or _target(len(frames), picture.size, settings, item)
        pictures.append(resize(picture, size))
    form = (f"frames at {fps}", *opened[0].size)
    key = media_key("video", frames, form=form, settings=settings)
    rate = fps or settings.fps
    return _media(pictures, [index / rate for index in range(len(frames))], key, settings)


def choose_frames(total: int, fps: float, settings: ProcessorSettings) -> list[int]:
    """Return the indices of the frames to take of `total`, evenly spread."""
    count = settings.num_frames
    if count is None:
        count = max(int(total / fps * settings.fps), settings.min_frames)
    count = min(count, settings.max_frames, total)
    chosen: list[int] = np.linspace(0, total - 1, count).round().astype(int).tolist()
    return chosen


def frame_times(times: Sequence[float], per_frame: int) -> tuple[float, ...]:
    """Return the time of each frame of the model: the mean of its first and last picture's."""
    padded = [*times, *[times[-1]] * (-len(times) % per_frame)]
    return tuple(
        (padded[start] + padded[start + per_frame - 1]) / 2
        for start in range(0, len(padded), per_frame)
    )


def _media(
    pictures: Sequence[Pixels], times: Sequence[float], key: bytes, settings: ProcessorSettings
) -> Media:
    per_frame, side = settings.temporal_patch_size, settings.patch_size
    padded = [*pictures, *[pictures[-1]] * (-len(pictures) % per_frame)]
    starts = range(0, len(padded), per_frame)
    patches = np.concatenate([cut(padded[start : start + per_frame], settings) for start in starts])
    rows, columns, _ = pictures[0].shape
    return Media(
        kind="video",
        key=key,
        grid=(len(starts), rows // side, columns // side),
        merge_size=settings.merge_size,
        patches=patches.data.cast("B"),
        timestamps=frame_times(times, per_frame),
    )


def _open(data: bytes, item: str) -> av.container.InputContainer:
    if not data:
        raise InvalidMediaError(item, "is empty (0 bytes)")
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    container = av.open(io.BytesIO(data), "r", options=options)
    if not container.streams.video:
        container.close()
        raise InvalidMediaError(item, "has no video in it, only sound or text")
    if not hasattr(container.streams.video[0], "width"):  # asked of the codec, if there is one
        container.close()
        raise InvalidMediaError(item, "is in a codec that is not known")
    return container


def _read_facts(data: bytes, item: str) -> VideoFacts:
    """Count the frames by their packets, which costs no decoding: webm does not say it."""
    with _open(data, item) as container:
        stream = container.streams.video[0]
        num_frames = sum(packet.size > 0 for packet in container.demux(stream))
        fps = float(stream.average_rate or stream.guessed_rate or UNKNOWN_FPS)
        facts = VideoFacts(num_frames, fps, stream.width, stream.height)
        if num_frames < stream.frames:
            raise InvalidMediaError(
                item, f"is cut short: {num_frames} of its {stream.frames} frames are there"
            )
    if num_frames == 0 or not (facts.width and facts.height):
        raise InvalidMediaError(item, "has no frames")
    pixels = facts.width * facts.height
    if pixels > MAX_PIXELS or pixels * num_frames > MAX_DECODED_PIXELS:
        raise InvalidMediaError(
            item,
            f"{num_frames} frames of {facts.width}×{facts.height} are too much to decode: "
            f"at most {MAX_DECODED_PIXELS:,} pixels in all are; send it shorter or smaller",
        )
    return facts


def _shown_frames(data: bytes, item: str) -> Iterator[av.VideoFrame]:
    with _open(data, item) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise InvalidMediaError(item, "is damaged: a frame cannot be decoded")
            yield frame


def _count_shown(data: bytes, item: str) -> int:
    count = sum(1 for _ in _shown_frames(data, item))
    if count == 0:
        raise InvalidMediaError(item, "has no frames that can be decoded")
    return count


def _decode_frames(
    data: bytes, wanted: Sequence[int], settings: ProcessorSettings, item: str
) -> Iterator[Pixels]:
    """Yield the wanted frames at the model's size; indices are in order."""
    chosen = set(wanted)
    size: tuple[int, int] | None = None
    for index, frame in enumerate(_shown_frames(data, item)):
        if index in chosen:
            picture = _upright_rgb(frame)
            size = size or _target(len(wanted), picture.size, settings, item)
            yield resize(picture, size)
        if index >= wanted[-1]:
            return


def _target(
    num_frames: int, size: tuple[int, int], settings: ProcessorSettings, item: str
) -> tuple[int, int]:
    try:
        # Upstream refuses a single frame; here it is shown twice, as a picture is.
        return video_size(max(num_frames, settings.temporal_patch_size), *size, settings)
    except RatioError as error:
        raise InvalidMediaError(item, str(error)) from error


def _upright_rgb(frame: av.VideoFrame) -> Image.Image:
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24")
    if quarters := round(frame.rotation / 90) % 4:  # how a telephone was held
        pixels = np.rot90(pixels, quarters)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return on_white(image).convert("RGB") if has_alpha else image
