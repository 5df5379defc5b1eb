"""`LLM` with pictures says what transformers says, however a script hands them over."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from qwen_engine import LLM, SamplingParams
from qwen_engine.errors import InvalidMediaError, RequestError
from tests.contract.media_server import data_url, image, text, user, video
from tests.contract.test_api_pictures import NUM_TOKENS, expected
from tests.models.tiny import build_tiny
from tests.models.tiny_vision import build_tiny_vision
from tests.unit import pictures
from tests.unit.pictures import encoded, noise

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PICTURE = encoded(noise(96, 64, seed=1))
PIL: dict[str, Any] = {"type": "image_pil", "image_pil": Image.open(io.BytesIO(PICTURE))}
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
RENDERED = f"<|im_start|>user\n{PAD}What is it?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(
        str(build_tiny_vision("2b")), device="cpu", dtype="float32", max_model_len=512,
        block_size=16, num_gpu_blocks_override=64, max_num_seqs=4,
        limit_mm_per_prompt={"image": 3, "video": 1},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _the_pool_is_whole_afterwards(llm: LLM) -> Iterator[None]:
    yield
    stats = llm._engine.stats()
    assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)


def test_a_picture_in_any_form_is_what_transformers_sees(llm: LLM) -> None:
    prompt, answer = expected(build_tiny_vision("2b"), RENDERED, [PICTURE])
    forms = [image(data_url(PICTURE)), PIL, {"image_pil": PIL["image_pil"]}]
    conversations = [user(form, text("What is it?")) for form in forms]
    found = llm.chat(conversations, GREEDY, use_tqdm=False)
    asked: list[Any] = [
        {"prompt": RENDERED, "multi_modal_data": {"image": PIL["image_pil"]}},
        {"prompt": RENDERED, "multi_modal_data": {"image": [data_url(PICTURE)]}},
        {
            "prompt_token_ids": llm._tokenizer.encode(RENDERED),
            "multi_modal_data": {"image": [PIL["image_pil"]]},
        },
    ]
    found += llm.generate(asked, GREEDY, use_tqdm=False)
    for output in found:
        assert output.prompt_token_ids == prompt
        said = [list(llm._tokenizer.token_bytes(token)) for token in output.outputs[0].token_ids]
        assert said == answer


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_a_pillow_picture_of_any_mode_is_that_of_its_file(llm: LLM, mode: str) -> None:
    picture = Image.new(mode, (40, 40), 7) if mode == "I;16" else noise(40, 40).convert(mode)
    file = data_url(encoded(picture, "TIFF" if mode == "CMYK" else "PNG"))
    forms = [image(file), {"type": "image_pil", "image_pil": picture}]
    found = llm.chat([user(form) for form in forms], GREEDY, use_tqdm=False)
    assert found[0].outputs[0].token_ids == found[1].outputs[0].token_ids


def test_a_pillow_picture_is_turned_as_its_exif_says(llm: LLM) -> None:
    picture = noise(96, 64)
    picture.getexif()[0x0112] = 6
    turned = picture.transpose(Image.Transpose.ROTATE_270)
    forms = [{"type": "image_pil", "image_pil": each} for each in (picture, turned)]
    found = llm.chat([user(form) for form in forms], GREEDY, use_tqdm=False)
    assert found[0].outputs[0].token_ids == found[1].outputs[0].token_ids


def test_videos_several_choices_and_settings_of_the_processor_work_together(llm: LLM) -> None:
    clip = data_url(pictures.video(num_frames=10), "video/mp4")
    messages = user(video(clip), PIL, text("Which?"))
    three = SamplingParams(temperature=0, max_tokens=4, n=3)
    [found] = llm.chat(messages, three, use_tqdm=False)
    assert len({tuple(choice.token_ids) for choice in found.outputs}) == 1
    settings = {"max_pixels": 64 * 32, "min_pixels": 1024}
    [smaller] = llm.chat(messages, three, use_tqdm=False, mm_processor_kwargs=settings)
    assert len(found.prompt_token_ids) - len(smaller.prompt_token_ids) == 6 - 1


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([image(data_url(b"hello"))], r"content\[0\]\.image_url\.url: is not a picture"),
        ([{"type": "image_pil", "image_pil": 5}], r"content\[0\]\.image_pil=5: must be a picture"),
        ([PIL] * 4, "4 images in one request; this server takes at most 3"),
        ([text(PAD)], "1 image placeholders for 0 images"),
        ([image("http://169.254.169.254/x")], "does not connect to"),
    ],
)
def test_what_is_wrong_with_a_picture_is_said_by_its_name(
    llm: LLM, parts: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        llm.chat([user(text("Hi")), user(*parts)], GREEDY, use_tqdm=False)


def test_a_model_of_text_says_that_it_cannot_see() -> None:
    blind = LLM(
        str(build_tiny("qwen3-tied")), device="cpu", max_model_len=128, num_gpu_blocks_override=16
    )
    with pytest.raises(InvalidMediaError, match="answers about text only"):
        blind.chat(user(PIL), GREEDY, use_tqdm=False)
