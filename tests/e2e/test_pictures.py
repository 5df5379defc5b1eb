"""Pictures and videos, as a user of the cluster sends them, and their true answers."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from tests.cluster.client import Cluster
from tests.cluster.volumes import offer_folder
from tests.e2e.release import Release
from tests.e2e.served import Served
from tests.models.seeing_data import Lesson, draw_picture, make_lesson
from tests.models.seeing_folder import SERVED_NAME, offer_seeing

pytestmark = pytest.mark.root

NAMESPACE = "pictures"


@pytest.fixture(scope="module")
def client(cluster: Cluster, release: Release) -> Iterator[openai.OpenAI]:
    """A client of the shipped sample, applied as it stands in a restricted namespace."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", NAMESPACE, enforce)
    offer_folder(cluster, offer_seeing().parent, claim="models", namespace=NAMESPACE)
    served = Served(cluster, NAMESPACE, SERVED_NAME)
    served.apply_sample(f"{SERVED_NAME}.yaml")
    served.await_available()
    # no proxy from the environment between us and our own machine
    direct = openai.DefaultHttpxClient(trust_env=False)
    url = f"{served.url()}/v1"
    with openai.OpenAI(base_url=url, api_key="none", http_client=direct) as client:
        yield client
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _data_url(pictures: list[Image.Image], kind: str) -> str:
    encoded = io.BytesIO()
    frames: dict[str, Any] = {}
    if len(pictures) > 1:
        frames = {"save_all": True, "append_images": pictures[1:], "duration": 500}
    pictures[0].save(encoded, kind, **frames)
    place = "video" if len(pictures) > 1 else "image"
    return f"data:{place}/{kind.lower()};base64,{base64.b64encode(encoded.getvalue()).decode()}"


def _ask(client: openai.OpenAI, *content: dict[str, Any]) -> str | None:
    messages: Any = [{"role": "user", "content": list(content)}]
    answer = client.chat.completions.create(
        model=SERVED_NAME, messages=messages, temperature=0, max_tokens=32
    )
    return answer.choices[0].message.content


def _ask_lesson(client: openai.OpenAI, lesson: Lesson) -> str | None:
    is_video = len(lesson.pictures) > 1
    kind = "video_url" if is_video else "image_url"
    url = _data_url(lesson.pictures, "GIF" if is_video else "PNG")
    return _ask(
        client, {"type": kind, kind: {"url": url}}, {"type": "text", "text": lesson.question}
    )


@pytest.mark.parametrize("topic", ["one", "count", "digit", "relation", "order"])
def test_what_is_asked_of_new_pictures_is_answered_truly(client: openai.OpenAI, topic: str) -> None:
    lessons = [make_lesson(2 * seed + 1, topic) for seed in range(1000, 1010)]
    answers = [_ask_lesson(client, lesson) for lesson in lessons]
    right = sum(a == lesson.answer for a, lesson in zip(answers, lessons, strict=True))
    assert right >= 9, list(zip(answers, [lesson.answer for lesson in lessons], strict=True))


def test_a_second_question_about_the_same_picture_is_answered_of_it(
    client: openai.OpenAI,
) -> None:
    picture = draw_picture([("green", "cross", (70, 20), 80), ("white", "circle", (90, 150), 80)])
    part = {"type": "image_url", "image_url": {"url": _data_url([picture], "JPEG")}}
    answers = [
        _ask(client, part, {"type": "text", "text": question})
        for question in ("Where is the green cross?", "How many shapes are there?")
    ]
    assert answers == ["Above the white circle.", "2."]
