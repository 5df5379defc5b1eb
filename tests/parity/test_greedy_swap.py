"""What transformers says, also when sequences are swapped out, come back, or fork."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams, SchedulingParams
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import build_tiny
from tests.parity.greedy import (
    NUM_TOKENS,
    Prompt,
    assert_same_ids,
    engine_config,
    make_prompts,
    run_engine,
)

LENGTHS = [1, 2, 15, 16, 17, 40, 64, 100] * 4  # 32 requests; 8 of them share 48 tokens


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(params=["qwen3-tied", "qwen3-3q-1kv"])
def folder(request: pytest.FixtureRequest) -> Path:
    return build_tiny(request.param)


@pytest.fixture
def prompts(folder: Path) -> list[Prompt]:
    return make_prompts(folder, LENGTHS, shared=48)


@pytest.mark.parametrize("block_size", [16, 64, 128])
@pytest.mark.parametrize("settings", [
    {"num_cpu_blocks": 512},
    {"num_cpu_blocks": 512, "enable_prefix_caching": False, "max_num_batched_tokens": 64},
    {"num_cpu_blocks": 3, "max_num_batched_tokens": 7},  # too few: some are recomputed
])  # fmt: skip
def test_a_storm_of_swapping_changes_no_id(
    folder: Path, prompts: list[Prompt], settings: dict[str, Any], block_size: int
) -> None:
    num_blocks = {16: 24, 64: 6, 128: 3}[block_size]
    config = engine_config(
        folder,
        block_size=block_size,
        num_gpu_blocks=num_blocks,
        preemption_mode="swap",
        **settings,
    )
    answers, stats = run_engine(config, prompts)
    assert stats.blocks_swapped_out > 0
    assert stats.blocks_swapped_in > 0
    assert_same_ids(folder, prompts, answers)
    assert stats.num_free_blocks == stats.num_total_blocks
    assert stats.num_free_swap_blocks == stats.num_total_swap_blocks


def test_prefixes_from_the_swap_space_change_no_id(folder: Path, prompts: list[Prompt]) -> None:
    """The same prompts twice through a pool that holds one or two of them."""
    config = engine_config(folder, num_gpu_blocks=16, num_cpu_blocks=512, preemption_mode="swap")
    some = prompts[4:8] * 3
    answers, stats = run_engine(config, some)
    assert stats.blocks_swapped_in > 0
    assert_same_ids(folder, some, answers)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 40, 100])
def test_forks_say_what_their_parent_says(folder: Path, num_tokens: int) -> None:
    [prompt] = make_prompts(folder, [num_tokens], shared=0)
    answers, stats = run_family(LLMEngine.from_config(engine_config(folder)), prompt, 4)
    assert_same_ids(folder, [prompt] * 4, answers)
    assert stats.prefix_cache_hits == 3 * (num_tokens - 1), "only the last token is computed again"
    assert stats.num_used_blocks == 0


def test_forks_under_pressure_say_what_their_parent_says(folder: Path) -> None:
    [prompt] = make_prompts(folder, [40], shared=0)
    config = engine_config(
        folder,
        num_gpu_blocks=12,
        num_cpu_blocks=64,
        preemption_mode="swap",
        enable_prefix_caching=False,  # equal answers would be shared, and nothing swapped
    )
    answers, stats = run_family(LLMEngine.from_config(config), prompt, 4)
    assert stats.blocks_swapped_in > 0
    assert_same_ids(folder, [prompt] * 4, answers)
    assert stats.num_used_blocks == stats.num_used_swap_blocks == 0


def run_family(engine: LLMEngine, prompt: Prompt, size: int) -> tuple[list[list[int]], Any]:
    """Send a prompt and its forks; return their ids and the engine's numbers at the end."""
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    answers: dict[str, list[int]] = {str(index): [] for index in range(size)}
    for name in answers:
        fork_of = None if name == "0" else "0"
        engine.add_request(name, prompt, params, SchedulingParams(fork_of=fork_of))
    while engine.has_unfinished():
        for output in engine.step():
            answers[output.request_id].extend(output.token_ids)
    return list(answers.values()), engine.stats()


def test_a_real_model_swapped_says_what_transformers_says() -> None:
    folder = build_smollm2()
    prompts = make_prompts(folder, [3, 17, 50, 64] * 3, shared=48)
    config = engine_config(
        folder,
        block_size=64,
        num_gpu_blocks=16,
        num_cpu_blocks=16,
        preemption_mode="swap",
        enable_prefix_caching=False,
    )
    answers, stats = run_engine(config, prompts)
    assert stats.blocks_swapped_in > 0
    assert_same_ids(folder, prompts, answers)


def test_the_costs_are_measured_and_a_cpu_swaps() -> None:
    """Copying is memory's speed, computing is not: on CPUs the rule comes out for swapping."""
    folder = build_smollm2()
    engine = LLMEngine.from_config(engine_config(folder, num_cpu_blocks=64))
    policy = engine._scheduler._preemption
    assert policy.mode == "auto"
    assert 0 < policy.costs.seconds_per_block < 0.1
    assert 0 < policy.costs.seconds_per_token < 1
    assert policy.prefers_swap(num_blocks=4, num_tokens=64)
