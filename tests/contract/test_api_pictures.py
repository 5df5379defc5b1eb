"""Pictures and videos through the whole HTTP path: transformers' ids, and what clients send.

Covers API-015, -021, -023, -027, -071 and -073 of the reported cases.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from qwen_engine.tokenizer import Tokenizer
from qwen_engine.vision.images import PictureFile
from qwen_engine.vision.media import Media
from tests.contract.media_server import (
    PICTURE,
    MediaServer,
    data_url,
    image,
    text,
    user,
    video,
)
from tests.unit import pictures
from tests.unit.pictures import encoded, noise

NUM_TOKENS = 16
FIRST, SECOND = encoded(noise(96, 64, seed=1)), encoded(noise(64, 160, seed=2))
# 64×96 and 160×64 pixels, in squares of 32
FIRST_TOKENS, SECOND_TOKENS = 6, 10


@cache
def reference(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model and processor of pictures."""
    import torch
    from transformers import (
        AutoModelForImageTextToText,
        GenerationConfig,
        Qwen2VLImageProcessorPil,
    )

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return model, Qwen2VLImageProcessorPil.from_pretrained(folder)


def expected(
    folder: Path, rendered: str, contents: Sequence[bytes]
) -> tuple[list[int], list[list[int]]]:
    """Return transformers' ids of a prompt, and the bytes of each token of its greedy answer."""
    import torch

    model, processor = reference(folder)
    tokenizer = Tokenizer.from_folder(folder)
    inputs = processor([Image.open(io.BytesIO(each)) for each in contents], return_tensors="pt")
    for grid in inputs["image_grid_thw"]:
        rendered = rendered.replace("<|image_pad|>", "<|pad|>" * (int(grid.prod()) // 4), 1)
    prompt = tokenizer.encode(rendered.replace("<|pad|>", "<|image_pad|>"))
    ids = torch.tensor([prompt])
    is_image = (ids == model.config.image_token_id).int()
    with torch.inference_mode():
        answer = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=is_image,
            max_new_tokens=NUM_TOKENS, **inputs,
        )  # fmt: skip
    said = answer[0, len(prompt) :].tolist()
    return prompt, [list(tokenizer.token_bytes(token)) for token in said]


@pytest.mark.parametrize(
    ("parts", "contents", "shown"),
    [
        ([image(data_url(FIRST)), text("What is it?")], [FIRST], "<i>What is it?"),
        (
            [image(data_url(FIRST)), text(" or "), image(data_url(SECOND)), text("?")],
            [FIRST, SECOND], "<i> or <i>?",
        ),
    ],
)  # fmt: skip
def test_the_ids_are_those_of_transformers(
    seeing: MediaServer, parts: list[dict[str, Any]], contents: list[bytes], shown: str
) -> None:
    seen = shown.replace("<i>", "<|vision_start|><|image_pad|><|vision_end|>")
    rendered = f"<|im_start|>user\n{seen}<|im_end|>\n<|im_start|>assistant\n"
    prompt, answer = expected(seeing.folder, rendered, contents)
    assert seeing.post("/tokenize", {"messages": user(*parts)})[1]["tokens"] == prompt
    for _ in range(2):  # with the picture new, and with it and its prefix known
        status, body = seeing.chat(
            *parts, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=True,
            skip_special_tokens=False,
        )  # fmt: skip
        assert status == 200, body
        said = [each["bytes"] for each in body["choices"][0]["logprobs"]["content"]]
        assert said == answer
        assert body["usage"]["prompt_tokens"] == len(prompt)


def test_media_may_come_in_any_order_over_several_turns(seeing: MediaServer) -> None:
    clip = data_url(pictures.video(num_frames=10), "video/mp4")
    messages = [
        *user(text("a"), image(data_url(FIRST)), video(clip), text("b")),
        {"role": "assistant", "content": "So it is."},
        *user(video(clip), image(data_url(SECOND), detail="low"), image(data_url(FIRST))),
    ]
    status, body = seeing.chat(messages=messages)
    assert status == 200, body
    status, found = seeing.post("/tokenize", {"messages": messages})
    assert found["count"] == body["usage"]["prompt_tokens"]
    tokenizer = Tokenizer.from_folder(seeing.folder)
    pads = [tokenizer.added_token_id(f"<|{kind}_pad|>") for kind in ("image", "video")]
    counts = [found["tokens"].count(pad) for pad in pads]
    # 10 frames at 10 a second are sampled at 2: four, the least, so two pairs of 64×32 pixels
    assert counts == [2 * FIRST_TOKENS + SECOND_TOKENS, 2 * 2 * 2]
    assert "seconds>" in tokenizer.decode(found["tokens"])


def test_an_address_is_as_good_as_the_bytes(seeing: MediaServer) -> None:
    by_address = seeing.chat(image(f"{seeing.site}/picture.png"), max_tokens=8)
    by_bytes = seeing.chat(image(data_url(PICTURE)), max_tokens=8)
    assert by_address[0] == by_bytes[0] == 200
    assert by_address[1]["choices"] == by_bytes[1]["choices"]


def test_pictures_go_through_the_clients_of_openai_streamed(seeing: MediaServer) -> None:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = user(image(data_url(FIRST)), text("What?"))
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=4, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens > FIRST_TOKENS


@pytest.mark.parametrize("mode", ["P", "L", "LA", "RGBA", "CMYK", "1", "I;16"])
def test_every_mode_of_a_picture_is_taken(seeing: MediaServer, mode: str) -> None:
    picture = Image.new(mode, (40, 40)) if mode == "I;16" else noise(40, 40).convert(mode)
    content = encoded(picture, "TIFF" if mode == "CMYK" else "PNG")
    status, body = seeing.chat(image(data_url(content)))
    assert status == 200, body


@pytest.mark.parametrize("size", [(1, 1), (26, 28), (200, 1)])
def test_tiny_and_long_pictures_are_taken(seeing: MediaServer, size: tuple[int, int]) -> None:
    status, body = seeing.chat(image(data_url(encoded(noise(*size)))))
    assert status == 200, body


def test_a_video_may_be_a_list_of_frames(seeing: MediaServer) -> None:
    frames = [encoded(noise(64, 64, seed=seed), "JPEG") for seed in range(4)]
    joined = ",".join(data_url(frame).partition(",")[2] for frame in frames)
    listed = {"type": "video", "video": [data_url(frame) for frame in frames]}
    ways = [video(f"data:video/jpeg;base64,{joined}"), listed]
    bodies = [seeing.chat(way, text("What?"), max_tokens=4) for way in ways]
    assert [status for status, _ in bodies] == [200, 200], bodies
    assert bodies[0][1]["choices"] == bodies[1][1]["choices"]


def test_the_smaller_of_fps_and_max_frames_wins(seeing: MediaServer) -> None:
    clip = data_url(pictures.video(num_frames=30), "video/mp4")
    settings = {"fps": 30, "max_frames": 8}
    body = {"messages": user(video(clip)), "mm_processor_kwargs": settings}
    status, found = seeing.post("/tokenize", body)
    assert status == 200, found
    pad = Tokenizer.from_folder(seeing.folder).added_token_id("<|video_pad|>")
    assert found["tokens"].count(pad) == 8 // 2 * 2


def test_a_request_may_ask_for_smaller_pictures(seeing: MediaServer) -> None:
    content = image(data_url(encoded(noise(160, 160))))
    sizes = [{}, {"max_pixels": 96 * 96}]
    asked = [{"messages": user(content), "mm_processor_kwargs": size} for size in sizes]
    counts = [seeing.post("/tokenize", body)[1]["count"] for body in asked]
    assert counts[0] - counts[1] == 5 * 5 - 3 * 3


def test_pictures_stand_at_their_places_in_a_completion(seeing: MediaServer) -> None:
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    body = {
        "prompt": f"a{pad}b{pad}", "max_tokens": 4, "temperature": 0,
        "multi_modal_data": {"image": [data_url(FIRST), data_url(SECOND)]},
    }  # fmt: skip
    status, answer = seeing.post("/v1/completions", body)
    assert status == 200, answer
    plain = seeing.post("/tokenize", {"prompt": body["prompt"]})[1]["count"]
    added = FIRST_TOKENS + SECOND_TOKENS - 2
    assert answer["usage"]["prompt_tokens"] == plain + added


def test_a_slow_address_holds_up_nobody_else_and_is_given_up(seeing: MediaServer) -> None:
    ended: list[tuple[int, Any]] = []
    slow = [
        threading.Thread(
            target=lambda: ended.append(seeing.chat(image(f"{seeing.site}/stuck"), text("Hi")))
        )
        for _ in range(6)
    ]
    for thread in slow:
        thread.start()
    assert seeing.chat(image(data_url(FIRST)), max_tokens=1)[0] == 200
    assert seeing.chat(text("Hi"), max_tokens=1)[0] == 200
    assert not ended
    for thread in slow:
        thread.join()
    for status, body in ended:
        assert (status, body["error"]["param"]) == (400, "messages[0].content[0].image_url.url")
        assert "did not answer in full within 3 s" in body["error"]["message"]


def test_what_is_encoded_again_is_counted_as_found(seeing: MediaServer) -> None:
    def counts() -> list[float]:
        lines = seeing.get("/metrics").splitlines()
        names = ("vllm:mm_cache_queries_total{", "vllm:mm_cache_hits_total{")
        return [float(x.split()[-1]) for name in names for x in lines if x.startswith(name)]

    content = image(data_url(encoded(noise(64, 64, seed=77))))
    seeing.chat(content)
    before = counts()
    seeing.chat(text("Again:"), content)
    assert [after - then for after, then in zip(counts(), before, strict=True)] == [1, 1]


def test_a_picture_that_comes_again_is_not_decoded_again(
    seeing: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded = PictureFile.decode, []

    def count(picture: PictureFile) -> Media:
        decoded.append(picture.item)
        return decode(picture)

    monkeypatch.setattr(PictureFile, "decode", count)
    content = image(data_url(encoded(noise(64, 64, seed=78))))
    assert seeing.chat(content, text("or"), content)[0] == 200
    assert seeing.chat(text("Again:"), content)[0] == 200
    assert len(decoded) == 1
    smaller = {"mm_processor_kwargs": {"max_pixels": 32 * 64, "min_pixels": 32 * 32}}
    assert seeing.chat(content, **smaller)[0] == 200
    assert len(decoded) == 2


def test_only_listed_domains_are_fetched_from_where_there_is_a_list() -> None:
    with MediaServer(allowed_media_domains=("pictures.example",)) as server:
        status, body = server.chat(image(f"{server.site}/picture.png"))
    assert (status, body["error"]["param"]) == (400, "messages[0].content[0].image_url.url")
    assert "--allowed-media-domains" in body["error"]["message"]
