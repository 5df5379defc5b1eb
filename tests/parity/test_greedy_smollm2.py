"""A real model says in float32 exactly what transformers says, however it is scheduled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.smollm2 import build_smollm2
from tests.parity.greedy import (
    Prompt,
    assert_same_ids,
    engine_config,
    make_prompts,
    run_engine,
)

LENGTHS = [3, 17, 50, 64] * 8  # 32 requests; 16 of them share 48 tokens


@pytest.fixture(scope="module")
def folder() -> Path:
    return build_smollm2()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[Prompt]:
    return make_prompts(folder, LENGTHS, shared=48)


def test_one_request_alone(folder: Path, prompts: list[Prompt]) -> None:
    answers, _ = run_engine(engine_config(folder), prompts[2:3])
    assert_same_ids(folder, prompts[2:3], answers)


def test_32_at_once_in_chunks_with_prefix_sharing(folder: Path, prompts: list[Prompt]) -> None:
    answers, stats = run_engine(engine_config(folder, max_num_batched_tokens=64), prompts)
    assert_same_ids(folder, prompts, answers)
    assert stats.prefix_cache_hits > 0


def test_12_at_once_preempted_without_prefix_sharing(folder: Path, prompts: list[Prompt]) -> None:
    config = engine_config(folder, block_size=64, num_gpu_blocks=16, enable_prefix_caching=False)
    answers, stats = run_engine(config, prompts[:12])
    assert stats.num_preemptions > 0
    assert_same_ids(folder, prompts[:12], answers)


@pytest.mark.parametrize(("chunk", "num_requests"), [(1, 1), (7, 4)])
def test_tiny_chunks(folder: Path, prompts: list[Prompt], chunk: int, num_requests: int) -> None:
    config = engine_config(folder, max_num_batched_tokens=chunk)
    answers, _ = run_engine(config, prompts[1 : 1 + num_requests])
    assert_same_ids(folder, prompts[1 : 1 + num_requests], answers)
