"""Pictures and videos for tests, encoded in memory."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
from PIL import Image


def noise(width: int, height: int, *, seed: int = 0, cell: int = 7) -> Image.Image:
    """Return a smooth random picture: what resizing must get right, and JPEG can keep."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // cell + 2, width // cell + 2, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def video(
    kind: str = "mp4",
    codec: str = "mpeg4",
    *,
    num_frames: int = 30,
    fps: int = 10,
    size: tuple[int, int] = (64, 32),
    pixel_format: str = "yuv420p",
) -> bytes:
    """Return a video that grows lighter: frame n is grey of 8·n."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream(codec, rate=fps)
        track.width, track.height = size
        track.pix_fmt = pixel_format
        for index in range(num_frames):
            grey = np.full((size[1], size[0], 3), min(8 * index, 255), dtype=np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(track.encode())
    return stream.getvalue()


def without_frames() -> bytes:
    """Return a video of which only the header was ever written."""
    stream = io.BytesIO()
    with av.open(stream, "w", format="avi") as container:
        track = container.add_stream("mpeg4", rate=10)
        track.width, track.height, track.pix_fmt = 64, 32, "yuv420p"
        container.start_encoding()
    return stream.getvalue()


def damaged(video: bytes) -> bytes:
    """Return a video in whose first frame a stretch was overwritten."""
    start = video.index(b"mdat") + 40
    return (
        video[:start]
        + bytes(255 - byte for byte in video[start : start + 60])
        + (video[start + 60 :])
    )


def sound() -> bytes:
    """Return a container without any video."""
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        container.mux(track.encode(frame))
        container.mux(track.encode())
    return stream.getvalue()
