"""The pictures that are sent: as smooth and as noisy as photographs, made from a seed."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of soft blotches with some grain."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (max(2, height // 40), max(2, width // 40), 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    grain = rng.integers(-4, 5, soft.shape, dtype=np.int16)
    return Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str) -> bytes:
    """Return the bytes of a file of this kind, such as JPEG."""
    stream = BytesIO()
    image.save(stream, kind)
    return stream.getvalue()
