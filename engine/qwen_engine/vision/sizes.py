"""The size a picture or video is brought to, and so how many tokens it is.

After transformers 5.24: smart_resize in models/qwen2_vl/image_processing_pil_qwen2_vl.py and in
models/qwen3_vl/video_processing_qwen3_vl.py, and `resize` there. Python's `round` (half to even)
is part of the result.
"""

from __future__ import annotations

import math

from qwen_engine.vision.settings import ProcessorSettings

MAX_RATIO = 200
_MAX_VIDEO_TOKENS_PER_FRAME = 768  # with cap_pixels_per_frame


class RatioError(ValueError):
    """A side is more than 200 times the other."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(
            f"{width}×{height} pixels: one side is more than {MAX_RATIO} times the other; crop it"
        )


def image_size(width: int, height: int, settings: ProcessorSettings) -> tuple[int, int]:
    """Return the (width, height) that a picture is resized to.

    Raises:
        RatioError: it is too long or too high.
    """
    _check_ratio(width, height)
    return _fit(
        (width, height),
        frames=(1, 1),
        factor=settings.factor,
        bounds=(settings.min_pixels, settings.max_pixels),
    )


def video_size(
    num_frames: int, width: int, height: int, settings: ProcessorSettings
) -> tuple[int, int]:
    """Return the (width, height) that each of `num_frames` frames is resized to.

    Raises:
        RatioError: they are too long or too high.
    """
    factor, pair = settings.factor, settings.temporal_patch_size
    max_pixels = settings.video_max_pixels
    if settings.cap_pixels_per_frame:
        cap = min(_MAX_VIDEO_TOKENS_PER_FRAME * factor**2, max_pixels // num_frames)
        max_pixels = max(cap, int(settings.video_min_pixels * 1.05)) * num_frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_ratio(width, height)
    return _fit(
        (width, height),
        frames=(num_frames, round(num_frames / pair) * pair),
        factor=factor,
        bounds=(settings.video_min_pixels, max_pixels),
    )


def _fit(
    size: tuple[int, int], *, frames: tuple[int, int], factor: int, bounds: tuple[int, int]
) -> tuple[int, int]:
    """Round both sides to multiples of `factor`, then scale them into the bounds.

    frames: how many there are, and how many after rounding to whole pairs.
    """
    width, height = size
    pixels = frames[0] * width * height
    new_width, new_height = (round(side / factor) * factor for side in size)
    if frames[1] * new_width * new_height > bounds[1]:
        shrink = math.sqrt(pixels / bounds[1])
        new_width, new_height = (
            max(factor, math.floor(side / shrink / factor) * factor) for side in size
        )
    elif frames[1] * new_width * new_height < bounds[0]:
        stretch = math.sqrt(bounds[0] / pixels)
        new_width, new_height = (math.ceil(side * stretch / factor) * factor for side in size)
    return new_width, new_height


def _check_ratio(width: int, height: int) -> None:
    if max(width, height) / min(width, height) > MAX_RATIO:
        raise RatioError(width, height)
