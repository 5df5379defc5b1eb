"""What is wrong with a picture or video is said, with the item's name, and the server goes on.

Covers API-017, -019, -025 and -029 of the reported cases.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.media_server import (
    MediaServer,
    data_url,
    image,
    text,
    user,
    video,
)
from tests.contract.server_process import ServerProcess
from tests.unit import pictures
from tests.unit.pictures import encoded, noise

PICTURE = encoded(noise(96, 64), "JPEG")
CLIP = pictures.video(num_frames=10)
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
IMAGE, VIDEO = "messages[0].content[1].image_url.url", "messages[0].content[1].video_url.url"


def bomb(side: int) -> bytes:
    """Return a PNG of which the header promises side² pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def as_image(content: bytes) -> Callable[[MediaServer], dict[str, Any]]:
    return lambda _: image(data_url(content))


def as_video(content: bytes) -> Callable[[MediaServer], dict[str, Any]]:
    return lambda _: video(data_url(content, "video/mp4"))


def at(path: str) -> Callable[[MediaServer], dict[str, Any]]:
    return lambda server: image(server.site + path)


def named(url: str) -> Callable[[MediaServer], dict[str, Any]]:
    return lambda _: image(url)


BAD: dict[str, tuple[Callable[[MediaServer], dict[str, Any]], str, str]] = {
    "truncated": (as_image(PICTURE[: len(PICTURE) // 2]), IMAGE, "damaged or cut short"),
    "a text called a picture": (as_image(b"hello"), IMAGE, "is not a picture that can be read"),
    "a video called a picture": (as_image(CLIP), IMAGE, "is not a picture that can be read"),
    "SVG": (as_image(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), IMAGE, "SVG drawing"),
    "empty": (as_image(b""), IMAGE, "0 bytes"),
    "a bomb": (as_image(bomb(12_000)), IMAGE, "more than the 64,000,000"),
    "a greater bomb": (as_image(bomb(60_000)), IMAGE, "more than the 64,000,000"),
    "too long": (as_image(encoded(noise(1093, 5))), IMAGE, "more than 200 times"),
    "wrong base64": (named("data:image/png;base64,###"), IMAGE, "is not base64"),
    "half a data address": (named("data:image/png"), IMAGE, "without a comma"),
    "a page": (at("/page"), IMAGE, "is an HTML page"),
    "nothing there": (at("/nowhere"), IMAGE, "answered 404"),
    "a redirect to the cloud's metadata": (at("/away"), IMAGE, "does not connect to"),
    "the cloud's metadata": (named("http://169.254.169.254/x"), IMAGE, "does not connect to"),
    "a private address": (named("http://10.0.0.1/x.png"), IMAGE, "does not connect to"),
    "a file": (named("file:///etc/passwd"), IMAGE, "is not an address"),
    "no address": (named("picture.png"), IMAGE, "is not an address"),
    "an address without an end": (at("/endless"), IMAGE, "larger than"),
    "a truncated video": (as_video(CLIP[:-300]), VIDEO, "is not a video that can be decoded"),
    "half a video": (as_video(CLIP[: len(CLIP) // 2]), VIDEO, "has no video in it"),
    "a picture called a video": (as_video(PICTURE), VIDEO, "is not a video that can be decoded"),
    "a video without frames": (as_video(pictures.sound()), VIDEO, "has no video in it"),
    "a video of a header alone": (as_video(pictures.without_frames()), VIDEO, "has no frames"),
    "a damaged video": (as_video(pictures.damaged(CLIP)), VIDEO, "is damaged"),
    "an empty video": (as_video(b""), VIDEO, "0 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_item_is_a_400_that_names_it(seeing: MediaServer, name: str) -> None:
    make, param, said = BAD[name]
    status, body = seeing.chat(text("What is it?"), make(seeing), image(data_url(PICTURE)))
    assert status == 400, body
    error = body["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert said in error["message"]
    assert error["message"].startswith(param)


def test_a_bad_frame_is_named_by_its_number(seeing: MediaServer) -> None:
    frames = [data_url(PICTURE), "data:,"]
    status, body = seeing.chat({"type": "video", "video": frames})
    assert (status, body["error"]["param"]) == (400, "messages[0].content[0].video[1]")


@pytest.mark.parametrize("number", [7, 10_000])
def test_too_many_pictures_are_refused_by_the_limit(seeing: MediaServer, number: int) -> None:
    status, body = seeing.chat(*[image(data_url(b"not looked at"))] * number)
    assert (status, body["error"]["param"]) == (400, "messages[0].content[6].image_url.url")
    assert (
        f"{number} images in one request; this server takes at most 6" in body["error"]["message"]
    )
    assert seeing.chat(image(data_url(PICTURE)))[0] == 200


def test_pictures_that_are_too_many_tokens_are_refused_before_they_are_decoded(
    seeing: MediaServer,
) -> None:
    large = image(data_url(bomb(1000)))  # a decoder would find it cut short
    status, body = seeing.chat(large)
    assert status == 400
    assert "tokens; 512 are taken at once" in body["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_pixels": 2**30}, "mm_processor_kwargs.max_pixels"),
        ({"max_pixels": 0}, "mm_processor_kwargs.max_pixels"),
        ({"longest": 5}, "mm_processor_kwargs.longest"),
        ({"fps": "many"}, "mm_processor_kwargs.fps"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    seeing: MediaServer, fields: dict[str, Any], param: str
) -> None:
    status, body = seeing.chat(image(data_url(PICTURE)), mm_processor_kwargs=fields)
    assert (status, body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("prompt", "media", "said"),
    [
        (f"{PAD} and {PAD}", {"image": data_url(PICTURE)}, "2 image placeholders for 1 image"),
        (PAD, {"image": [data_url(PICTURE)] * 2}, "1 image placeholders for 2 image"),
        (PAD, None, "1 image placeholders for 0 image"),
        ("text", {"image": data_url(PICTURE)}, "0 image placeholders for 1 image"),
        ("text", {"video": data_url(CLIP, "video/mp4")}, "0 video placeholders for 1 video"),
    ],
)
def test_placeholders_and_media_of_a_completion_must_be_as_many(
    seeing: MediaServer, prompt: str, media: Any, said: str
) -> None:
    body = {"prompt": prompt, "max_tokens": 1, "multi_modal_data": media}
    status, answer = seeing.post("/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert said in answer["error"]["message"]


@pytest.mark.parametrize(
    ("media", "param"),
    [
        ({"image": 5}, "multi_modal_data.image"),
        ({"image": ["data:,"]}, "multi_modal_data.image[0]"),
        ({"audio": "data:,"}, "multi_modal_data.audio"),
    ],
)
def test_the_media_of_a_completion_are_named_too(
    seeing: MediaServer, media: Any, param: str
) -> None:
    body = {"prompt": PAD, "max_tokens": 1, "multi_modal_data": media}
    status, answer = seeing.post("/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, param)


def test_placeholders_that_a_user_types_are_not_taken_for_pictures(seeing: MediaServer) -> None:
    status, body = seeing.chat(text(f"Look: {PAD}"))
    assert (status, body["error"]["param"]) == (400, "messages")
    assert "1 image placeholders for 0 images" in body["error"]["message"]


def test_after_all_that_nothing_is_held(seeing: MediaServer) -> None:
    assert seeing.chat(image(data_url(PICTURE)), text("Hi"))[0] == 200
    stats = seeing.state.engine.stats
    assert stats is not None
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert seeing.num_pictures_held() == 0


def test_a_model_of_text_says_that_it_cannot_see(server: ServerProcess) -> None:
    body = {"messages": user(text("What?"), image(data_url(PICTURE)))}
    status, answer = server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, IMAGE)
    assert "answers about text only" in answer["error"]["message"]
