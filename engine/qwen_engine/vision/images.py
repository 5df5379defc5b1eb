"""Encoded pictures to patches, with Pillow.

Pixel values are those of transformers' processor: transparency on white, bicubic to the size that
`sizes` gives. Unlike there a picture is turned as its EXIF says, 16 bits become the upper 8, and
values stay bytes: the tower scales them. Called by the server in a thread of its own; Pillow lets
go of the interpreter lock while it decodes and resizes.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from qwen_engine.errors import InvalidMediaError
from qwen_engine.vision.media import Media, media_key
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.sizes import RatioError, image_size

log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]

# What browsers show, and TIFF. Others bring decoders that nobody would miss and anybody can reach.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
# A cheap telephone's 50 megapixels pass; decoded they are 200 MB.
MAX_PIXELS = 64_000_000


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture whose header was read: enough to know its tokens and whether it was seen before."""

    item: str
    key: bytes
    size: tuple[int, int]  # that it is resized to
    settings: ProcessorSettings
    image: Image.Image

    def decode(self) -> Media:
        """Decode it, bring it to the model's size and cut it into patches.

        Raises:
            InvalidMediaError: the file is cut short or damaged.
        """
        pixels = resize(decode(self.image, item=self.item), self.size)
        side = self.settings.patch_size
        return Media(
            kind="image",
            key=self.key,
            grid=(1, self.size[1] // side, self.size[0] // side),
            merge_size=self.settings.merge_size,
            patches=cut([pixels], self.settings).data.cast("B"),
        )


def read_image(data: bytes, settings: ProcessorSettings, *, item: str) -> PictureFile:
    """Read a picture's header and decide its size.

    item: what the client called it, for the error.

    Raises:
        InvalidMediaError: no picture, or one of an impossible size.
    """
    image = open_image(data, item=item)
    upright = _upright_size(image)
    try:
        size = image_size(*upright, settings)
    except RatioError as error:
        raise InvalidMediaError(item, str(error)) from error
    key = media_key("image", [data], form=(image.mode, *upright), settings=settings)
    return PictureFile(item, key, size, settings, image)


def open_image(data: bytes, *, item: str) -> Image.Image:
    """Read a picture's header only.

    Raises:
        InvalidMediaError: it is none of `FORMATS`, or larger than `MAX_PIXELS`.
    """
    if not data:
        raise InvalidMediaError(item, "is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidMediaError(item, _too_large("its header promises")) from error
    except Exception as error:  # decoders of foreign bytes raise whatever comes
        raise InvalidMediaError(item, _what_it_is(data)) from error
    if image.width * image.height > MAX_PIXELS:
        raise InvalidMediaError(item, _too_large(f"{image.width}×{image.height} pixels are"))
    return image


def decode(image: Image.Image, *, item: str) -> Image.Image:
    """Return the first frame's pixels, upright, as RGB on white.

    Raises:
        InvalidMediaError: the file is cut short or damaged.
    """
    try:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _to_rgb(image)
    except Exception as error:  # decoders of foreign bytes raise whatever comes
        log.debug("%s cannot be decoded", item, exc_info=error)
        raise InvalidMediaError(
            item, f"a {image.format} file that is damaged or cut short: {error}"
        ) from error


def resize(image: Image.Image, size: tuple[int, int]) -> Pixels:
    """Return the pixels [rows, columns, 3] at (width, height)."""
    resized = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(resized)


def cut(pictures: Sequence[Pixels], settings: ProcessorSettings) -> Pixels:
    """Cut the pictures of one frame into patches [num_patches, 3, pictures, patch_size²]."""
    side, merge = settings.patch_size, settings.merge_size
    rows, columns, channels = pictures[0].shape
    blocks = (rows // (side * merge), merge, side, columns // (side * merge), merge, side)
    patches = np.empty(
        (blocks[0], blocks[3], merge, merge, channels, len(pictures), side, side), dtype=np.uint8
    )
    for index, picture in enumerate(pictures):
        shaped = picture.reshape(*blocks, channels)
        patches[:, :, :, :, :, index] = shaped.transpose(0, 3, 1, 4, 6, 2, 5)
    return patches.reshape(-1, channels, len(pictures), side * side)


def on_white(image: Image.Image) -> Image.Image:
    """Lay RGBA on white, as transformers and qwen-vl-utils do."""
    return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    if image.format == "TIFF":  # those Pillow turns by itself, and tells the size they will have
        return image.size
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception:  # damaged EXIF: `exif_transpose` will say so, if it matters
        orientation = 1
    lies = orientation in (5, 6, 7, 8)  # CIPA DC-008, Orientation: rows are columns
    return (image.height, image.width) if lies else image.size


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey; Pillow would clip them at 255
        image = Image.fromarray(_upper_byte(np.asarray(image)))
    if "A" in image.getbands() or "transparency" in image.info:
        image = on_white(image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _upper_byte(grey: NDArray[Any]) -> Pixels:
    upper = grey.clip(0, 65_535).astype(np.uint16) >> 8
    return upper.astype(np.uint8)


def _too_large(start: str) -> str:
    return f"{start} more than the {MAX_PIXELS:,} that are decoded: send a smaller picture"


def _what_it_is(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "is an HTML page, not a picture: does the address need a login?"
    if b"<svg" in start:
        return "is an SVG drawing; send it as PNG"
    return "is not a picture that can be read; JPEG, PNG, GIF, WebP, AVIF, BMP and TIFF can"
