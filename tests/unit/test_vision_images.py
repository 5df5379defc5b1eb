"""Pictures of all kinds become the right patches; what is none is refused by a sentence."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from qwen_engine.errors import InvalidMediaError, InvalidRequestError
from qwen_engine.vision.images import read_image
from qwen_engine.vision.media import Media
from qwen_engine.vision.settings import ProcessorSettings
from tests.unit.pictures import encoded, noise

SMALL = ProcessorSettings(min_pixels=1024, max_pixels=65_536)


def process(data: bytes, settings: ProcessorSettings = SMALL) -> Media:
    return read_image(data, settings, item="image_url").decode()


def mean_color(data: bytes) -> list[int]:
    patches = np.frombuffer(process(data).patches, dtype=np.uint8).reshape(-1, 3, 256)
    return [round(value) for value in patches.mean(axis=(0, 2))]


def quadrants() -> Image.Image:
    """Return 64 × 32: red on the left, blue on the right."""
    image = Image.new("RGB", (64, 32), "red")
    image.paste("blue", (32, 0, 64, 32))
    return image


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidMediaError) as caught:
        process(data)
    assert caught.value.param == "image_url"
    return str(caught.value)


def test_patches_of_a_merge_lie_side_by_side() -> None:
    rows, columns = np.mgrid[0:64, 0:64]
    grey = (rows // 16 * 4 + columns // 16).astype(np.uint8)  # each patch its number
    media = process(encoded(Image.fromarray(grey)))
    assert media.grid == (1, 4, 4)
    assert media.num_tokens == 4
    numbers = np.frombuffer(media.patches, dtype=np.uint8).reshape(16, -1)[:, 0].tolist()
    assert numbers == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])  # the last is turned by Pillow itself
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_says(orientation: int, kind: str) -> None:
    upright = noise(96, 64)
    inverse = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(inverse[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = process(encoded(stored, kind, exif=exif.tobytes()))
    assert turned.grid == (1, 4, 6)
    assert turned.patches == process(encoded(upright)).patches


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    assert mean_color(encoded(clear)) == [255, 255, 255]
    half = Image.new("LA", (32, 32), (0, 128))
    assert mean_color(encoded(half)) == [127, 127, 127]
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    assert mean_color(encoded(palette)) == [255, 0, 0]
    assert mean_color(encoded(palette, transparency=0)) == [255, 255, 255]
    assert mean_color(encoded(palette, transparency=b"\0\0")) == [255, 255, 255]


def test_grey_of_16_bits_keeps_its_shades() -> None:
    grey = np.full((32, 32), 0x8034, dtype=np.uint16)
    assert mean_color(encoded(Image.fromarray(grey))) == [128, 128, 128]


def test_print_colours_are_converted() -> None:
    cyan = Image.new("CMYK", (32, 32), (255, 0, 0, 0))
    red, green, blue = mean_color(encoded(cyan, "JPEG", quality=95))
    assert red < 10
    assert min(green, blue) > 245


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    first, second = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    data = encoded(first, kind, save_all=True, append_images=[second], duration=100)
    red, _, blue = mean_color(data)
    assert red > 240
    assert blue < 15


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_every_usual_format_is_read(kind: str) -> None:
    media = process(encoded(quadrants(), kind))
    colours = np.frombuffer(media.patches, dtype=np.uint8).reshape(2, 4, 3, 256).mean((1, 3))
    assert (colours[0, 0] > 240, colours[1, 2] > 240) == (True, True)


def test_the_key_tells_content_and_settings_apart() -> None:
    data = encoded(quadrants())
    key = process(data).key
    assert process(data).key == key
    assert process(encoded(quadrants(), "BMP")).key != key
    smaller = SMALL.changed({"max_pixels": 1024}, param="p")
    assert process(data, smaller).key != key


def test_what_is_no_picture_is_called_by_its_name() -> None:
    assert "0 bytes" in refusal(b"")
    assert "HTML page" in refusal(b"<!DOCTYPE html><html><body>Sign in</body></html>")
    assert "SVG" in refusal(b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>')
    assert "not a picture" in refusal(b"\x89PNG but not really")
    assert "not a picture" in refusal(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
def test_a_file_that_is_cut_short_is_refused(kind: str) -> None:
    data = encoded(noise(200, 100), kind)
    assert "image_url" in refusal(data[: len(data) // 2])


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        size, check = len(body), zlib.crc32(name + body)
        return struct.pack(">I", size) + name + body + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99)))


@pytest.mark.parametrize("side", [8_001, 10_000, 30_000])
def test_a_bomb_is_refused_by_its_header(side: int) -> None:
    assert "64,000,000" in refusal(png_header(side, side))


@pytest.mark.parametrize(("width", "height"), [(3, 5000), (4000, 3), (201, 1)])
def test_a_thread_is_no_picture(width: int, height: int) -> None:
    assert "200 times" in refusal(encoded(Image.new("L", (width, height))))


def test_random_damage_never_gives_anything_but_a_refusal() -> None:
    rng = np.random.default_rng(1)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        data = encoded(noise(60, 40), kind)
        for _ in range(30):
            damaged = bytearray(data)
            for place in rng.integers(0, len(data), 8):
                damaged[place] = rng.integers(0, 256)
            with suppress(InvalidMediaError):
                assert process(bytes(damaged)).num_tokens > 0


def test_settings_of_a_request_are_checked() -> None:
    settings = ProcessorSettings()
    changed = settings.changed({"max_pixels": 99_999, "fps": 1, "max_frames": 8}, param="kw")
    assert (changed.max_pixels, changed.fps, changed.max_frames) == (99_999, 1.0, 8)
    nested = {"images_kwargs": {"size": {"longest_edge": 77_777}}}
    assert settings.changed(nested, param="kw").max_pixels == 77_777
    assert settings.with_detail("low").max_pixels == 512 * 512
    for wrong in ({"max_pixel": 1}, {"max_pixels": "9"}, {"fps": 0}, {"images_kwargs": 3},
                  {"max_pixels": 1000}, {"size": {"height": 3}}):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="kw"):
            settings.changed(wrong, param="kw")
    with pytest.raises(InvalidRequestError, match="at most 16777216"):
        settings.changed({"max_pixels": 2**25}, param="kw").within(settings, param="kw")


def test_a_pictures_header_is_enough_to_know_its_tokens() -> None:
    data = encoded(noise(640, 480))
    header = read_image(data[:200], SMALL, item="x")
    assert header.size == read_image(data, SMALL, item="x").size == (288, 192)
    with pytest.raises(InvalidMediaError, match="cut short"):
        header.decode()
