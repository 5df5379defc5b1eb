"""The tiny model that sees, over HTTP: what it answers is what transformers answers, and true."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import av
import numpy as np
import pytest

from qwen_engine.vision.media import Media
from qwen_engine.vision.video import process_video
from tests.contract.media_server import data_url, image, text, user, video
from tests.contract.server_process import ServerProcess
from tests.models.seeing import Transformers
from tests.models.seeing_data import Lesson, make_lesson
from tests.models.seeing_folder import FOLDER
from tests.models.seeing_school import SETTINGS
from tests.unit.pictures import encoded

NUMBER = 12  # of questions on each topic, of those that `examine` does not ask


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(
        tmp_path_factory.mktemp("seeing") / "log", str(FOLDER), "--served-model-name", "seeing",
        "--device", "cpu", "--dtype", "float32", "--max-model-len", "512",
        "--num-gpu-blocks-override", "128", "--block-size", "16",
    )  # fmt: skip
    yield process.wait_ready()
    process.stop()


@cache
def transformers() -> Transformers:
    return Transformers(FOLDER)


def lessons(topic: str, number: int = NUMBER) -> list[Lesson]:
    return [make_lesson(2 * seed + 1, topic) for seed in range(2000, 2000 + number)]


def ask(server: ServerProcess, part: dict[str, Any], lesson: Lesson) -> str:
    messages = user(part, text(lesson.question))
    body = {"model": "seeing", "messages": messages, "temperature": 0, "max_tokens": 24}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    said: str = answer["choices"][0]["message"]["content"]
    return said


def check(topic: str, said: list[str], asked: list[Lesson], media: list[Media] | None) -> None:
    assert said == transformers().answer(asked, media)
    right = sum(a == lesson.answer for a, lesson in zip(said, asked, strict=True))
    assert right >= 0.9 * len(asked), f"{topic}: {right} of {len(asked)}"


@pytest.mark.parametrize("topic", ["one", "count", "digit", "relation"])
def test_pictures_are_answered_as_by_transformers_and_truly(
    server: ServerProcess, topic: str
) -> None:
    asked = lessons(topic)
    parts = [image(data_url(encoded(lesson.pictures[0]))) for lesson in asked]
    said = [ask(server, part, lesson) for part, lesson in zip(parts, asked, strict=True)]
    check(topic, said, asked, None)


def mp4(lesson: Lesson) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("mpeg4", rate=int(SETTINGS.fps))
        track.width, track.height = lesson.pictures[0].size
        track.pix_fmt, track.bit_rate = "yuv420p", 2_000_000
        for picture in lesson.pictures:
            frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
            container.mux(track.encode(frame))
        container.mux(track.encode())
    return stream.getvalue()


def gif(lesson: Lesson) -> bytes:
    first, *rest = lesson.pictures
    milliseconds = int(1000 / SETTINGS.fps)
    return encoded(first, "GIF", save_all=True, append_images=rest, duration=milliseconds)


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_videos_are_answered_as_by_transformers_and_truly(server: ServerProcess, kind: str) -> None:
    asked = lessons("order")
    files = [(mp4 if kind == "mp4" else gif)(lesson) for lesson in asked]
    parts = [video(data_url(file, f"video/{kind}")) for file in files]
    said = [ask(server, part, lesson) for part, lesson in zip(parts, asked, strict=True)]
    decoded = [process_video(file, SETTINGS, item=kind) for file in files]
    check("order", said, asked, decoded)


def test_a_list_of_frames_is_answered_as_by_transformers_and_truly(server: ServerProcess) -> None:
    asked = lessons("order", 10)
    said = [
        ask(
            server,
            {"type": "video", "video": [data_url(encoded(frame)) for frame in lesson.pictures]},
            lesson,
        )
        for lesson in asked
    ]
    check("order", said, asked, None)
