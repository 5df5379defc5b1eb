"""Prompts with pictures say in float32 what transformers says, however they are scheduled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen_engine.config import EngineConfig
from qwen_engine.engine_stats import EngineStats
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.planning.vision import VisionTokens, parse_vision_config
from qwen_engine.sequence import SamplingParams
from qwen_engine.vision.images import read_image
from qwen_engine.vision.media import Media
from qwen_engine.vision.prompt import MediaPrompt, expand
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.video import process_frames
from tests.models.tiny_vision import VISION_SHAPES, build_tiny_vision
from tests.unit.pictures import encoded, noise

NUM_TOKENS = 24


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(params=VISION_SHAPES)
def folder(request: pytest.FixtureRequest) -> Path:
    return build_tiny_vision(request.param)


def picture(width: int, height: int, seed: int = 0) -> Media:
    settings = ProcessorSettings(min_pixels=4096, max_pixels=65_536)
    return read_image(encoded(noise(width, height, seed=seed)), settings, item="x").decode()


def clip(num_frames: int) -> Media:
    frames = [encoded(noise(64, 64, seed=seed)) for seed in range(num_frames)]
    return process_frames(frames, ProcessorSettings(), item="x")


@cache
def make_prompts(folder: Path) -> list[MediaPrompt]:
    vision = parse_vision_config(json.loads((folder / "config.json").read_text()))
    assert vision is not None
    tokens = vision.tokens
    image, frame = ([tokens.start, pad, tokens.end] for pad in (tokens.image, tokens.video))
    a, b, video = picture(128, 96), picture(128, 96, 1), clip(5)
    others = [picture(*size, seed=2) for size in ((32, 64), (200, 64), (96, 160))]
    text = list(range(100, 140))
    prompts: list[tuple[list[int], list[Media]]] = [
        ([50, 51, *image, 52], [a]),
        ([*image, *image, 60, *image, 61, *image, 62], [a, *others]),
        (text * 3 + image + text, [a]),
        ([50, *frame, 51, *frame, 52, *frame, 53], [video]),
        ([50, *frame, 51, *frame, 52, *frame, 53, *image, 54], [video, b]),
        (text + image + text, [a]),  # these two differ in the picture only
        (text + image + text, [b]),
        ([50, *image, 51, *image, 52], [a, a]),
        (text, []),
    ]
    return [expand(ids, media, tokens) for ids, media in prompts]


@cache
def expected(folder: Path) -> list[list[int]]:
    """Return what transformers says to each of the prompts."""
    from transformers import AutoModelForImageTextToText, GenerationConfig

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    tokens = parse_vision_config(json.loads((folder / "config.json").read_text())).tokens  # type: ignore[union-attr]
    answers = []
    for prompt in make_prompts(folder):
        inputs = _inputs(prompt, tokens)
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=NUM_TOKENS)
        answers.append(ids[0, len(prompt.token_ids) :].tolist())
    return answers


def _inputs(prompt: MediaPrompt, tokens: VisionTokens) -> dict[str, torch.Tensor]:
    ids = torch.tensor([prompt.token_ids])
    types = (ids == tokens.image).int() + 2 * (ids == tokens.video).int()
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types,
    }  # fmt: skip
    for kind, names in {
        "image": ("pixel_values", "image_grid_thw"),
        "video": ("pixel_values_videos", "video_grid_thw"),
    }.items():
        items = [item for item in prompt.media if item.kind == kind]
        if items:
            inputs[names[0]] = torch.cat([_pixels(item) for item in items])
            inputs[names[1]] = torch.tensor([item.grid for item in items])
    return inputs


def _pixels(item: Media) -> torch.Tensor:
    values = torch.frombuffer(item.patches, dtype=torch.uint8)
    values = values.view(-1, 3, 1 if item.kind == "image" else 2, 256).expand(-1, -1, 2, -1)
    return (values.flatten(1) / 255 - 0.5) / 0.5


def make_engine(folder: Path, **changes: Any) -> LLMEngine:
    settings = {
        "max_model_len": 512, "num_gpu_blocks": 256, "dtype": "float32",
        "encoder_cache_tokens": 512, **changes,
    }  # fmt: skip
    return LLMEngine.from_config(EngineConfig(model_path=folder, **settings))


def ask(engine: LLMEngine, prompts: Sequence[MediaPrompt]) -> list[list[int]]:
    """Send all at once and return their answers."""
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    answers: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt.token_ids, params, media=prompt)
    while engine.has_unfinished():
        for output in engine.step():
            answers[output.request_id] += output.token_ids
    return list(answers.values())


def run(
    folder: Path, prompts: Sequence[MediaPrompt], **changes: Any
) -> tuple[list[list[int]], EngineStats]:
    engine = make_engine(folder, **changes)
    return ask(engine, prompts), engine.stats()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 64, "block_size": 64},
        {"max_num_batched_tokens": 33, "block_size": 32, "encoder_cache_tokens": 64},
        {"block_size": 128, "max_num_seqs": 3},
        {"enable_prefix_caching": False, "max_num_seqs": 2},
        {"encoder_cache_tokens": 64},  # room for the pictures of one request
    ],
)
def test_all_at_once(folder: Path, changes: dict[str, Any]) -> None:
    answers, stats = run(folder, make_prompts(folder), **changes)
    assert answers == expected(folder)
    assert stats.num_preemptions == 0
    assert stats.num_free_blocks == stats.num_total_blocks


# So few blocks that some are preempted, all of them in or after a prompt with pictures.
PREEMPTED = [
    {"num_gpu_blocks": 20, "max_num_batched_tokens": 64},
    {"num_gpu_blocks": 17, "max_num_batched_tokens": 20, "enable_prefix_caching": False},
    {"num_gpu_blocks": 6, "max_num_batched_tokens": 48, "block_size": 64},
    {"num_gpu_blocks": 20, "max_num_batched_tokens": 64, "encoder_cache_tokens": 64},
]


@pytest.mark.parametrize("changes", PREEMPTED)
@pytest.mark.parametrize("how", ["recomputed", "swapped"])
def test_sequences_with_pictures_are_preempted(
    folder: Path, changes: dict[str, Any], how: str
) -> None:
    if how == "swapped":
        changes = {**changes, "num_cpu_blocks": 64, "preemption_mode": "swap"}
    seeing = [index for index, prompt in enumerate(make_prompts(folder)) if prompt.media] * 2
    prompts = [make_prompts(folder)[index] for index in seeing]
    answers, stats = run(folder, prompts, **changes)
    assert answers == [expected(folder)[index] for index in seeing]
    assert stats.num_preemptions > 0
    assert (stats.blocks_swapped_in > 0) == (how == "swapped")
    assert stats.num_free_blocks == stats.num_total_blocks
    assert stats.num_free_swap_blocks == stats.num_total_swap_blocks


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"block_size": 32, "max_num_batched_tokens": 40},
        {"encoder_cache_tokens": 64},  # most are encoded anew, for what the prefix lacks
        {"num_gpu_blocks": 24, "num_cpu_blocks": 128, "preemption_mode": "swap"},
    ],
)
def test_what_is_asked_again_is_answered_the_same(folder: Path, changes: dict[str, Any]) -> None:
    """Cold, then with prefixes that end inside, before and after pictures."""
    engine, prompts = make_engine(folder, **changes), make_prompts(folder)
    assert ask(engine, prompts) == expected(folder)
    cold = engine.stats().prefix_cache_hits
    assert ask(engine, prompts[::-1]) == expected(folder)[::-1]
    assert engine.stats().prefix_cache_hits > 2 * cold
    assert engine.stats().num_used_blocks == 0


def test_prompts_that_differ_in_their_picture_only_are_not_mixed_up(folder: Path) -> None:
    prompts = make_prompts(folder)[5:7]
    answers, stats = run(folder, prompts * 2, max_num_seqs=1)
    assert answers == expected(folder)[5:7] * 2
    assert answers[0] != answers[1]
    assert stats.prefix_cache_hits > 32  # of the text before, and of each its own repetition
