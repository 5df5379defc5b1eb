"""The same on a CUDA device: plain torch, the same code, transformers' ids from the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.models.tiny import SHAPES, build_tiny
from tests.parity.greedy import assert_same_ids, engine_config, make_prompts, run_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.mark.parametrize("name", SHAPES)
def test_16_at_once_in_chunks_say_what_transformers_says(name: str) -> None:
    folder = build_tiny(name)
    prompts = make_prompts(folder, [1, 2, 15, 16, 17, 40, 64, 100] * 2, shared=48)
    config = engine_config(folder, device="cuda", max_num_batched_tokens=64)
    answers, stats = run_engine(config, prompts)
    assert_same_ids(folder, prompts, answers)
    assert stats.prefix_cache_hits > 0
