"""Every tiny shape says in float32 exactly what transformers says, however it is scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny import SHAPES, build_tiny
from tests.parity.greedy import (
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


@pytest.fixture(params=SHAPES)
def folder(request: pytest.FixtureRequest) -> Path:
    return build_tiny(request.param)


@pytest.fixture
def prompts(folder: Path) -> list[Prompt]:
    return make_prompts(folder, LENGTHS, shared=48)


def test_one_request_alone(folder: Path, prompts: list[Prompt]) -> None:
    answers, _ = run_engine(engine_config(folder), prompts[5:6])
    assert_same_ids(folder, prompts[5:6], answers)


@pytest.mark.parametrize("block_size", [16, 64])
def test_32_at_once_with_prefix_sharing(
    folder: Path, prompts: list[Prompt], block_size: int
) -> None:
    config = engine_config(folder, block_size=block_size)
    answers, stats = run_engine(config, prompts)
    assert_same_ids(folder, prompts, answers)
    assert (stats.prefix_cache_hits > 0) == (block_size == 16)  # 48 tokens are shared
    assert stats.num_free_blocks == stats.num_total_blocks


def test_32_at_once_without_prefix_sharing(folder: Path, prompts: list[Prompt]) -> None:
    answers, stats = run_engine(engine_config(folder, enable_prefix_caching=False), prompts)
    assert_same_ids(folder, prompts, answers)
    assert stats.prefix_cache_hits == 0


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prompts_cut_into_chunks(folder: Path, prompts: list[Prompt], chunk: int) -> None:
    some = prompts[:8] if chunk > 1 else prompts[4:6]  # one token a step: two requests are enough
    answers, _ = run_engine(engine_config(folder, max_num_batched_tokens=chunk), some)
    assert_same_ids(folder, some, answers)


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 16, "num_gpu_blocks": 24},
        {
            "block_size": 16,
            "num_gpu_blocks": 24,
            "enable_prefix_caching": False,
            "max_num_batched_tokens": 64,
        },
        {"block_size": 64, "num_gpu_blocks": 6},
    ],
)
def test_a_pool_so_small_that_sequences_are_preempted(
    folder: Path, prompts: list[Prompt], settings: dict[str, Any]
) -> None:
    answers, stats = run_engine(engine_config(folder, **settings), prompts)
    assert stats.num_preemptions > 0
    assert_same_ids(folder, prompts, answers)
    assert stats.num_free_blocks == stats.num_total_blocks


def test_the_reference_attention_agrees(folder: Path, prompts: list[Prompt]) -> None:
    config = engine_config(folder, attention_backend="reference")
    answers, _ = run_engine(config, prompts[3:6])
    assert_same_ids(folder, prompts[3:6], answers)
