"""Logprobs of prompts and answers against transformers, under what makes a prompt run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen_engine.llm_engine import EngineStats, LLMEngine
from qwen_engine.sequence import SamplingParams, TokenLogprobs
from tests.models.tiny import build_tiny
from tests.parity.greedy import Prompt, engine_config, load_oracle, make_prompts, run_requests

NUM_NEW = 40


@pytest.fixture(scope="module")
def folder() -> Path:
    return build_tiny("qwen3-tied")


def score(
    folder: Path, prompts: Sequence[Prompt], **settings: Any
) -> tuple[list[tuple[list[int], list[TokenLogprobs]]], EngineStats]:
    """Return each sequence's tokens with what the engine says of all but the first."""
    params = SamplingParams(
        max_tokens=NUM_NEW, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=2
    )
    outputs, stats = run_requests(engine_config(folder, **settings), prompts, params)
    found: list[tuple[list[int], list[TokenLogprobs]]] = []
    for prompt, of_one in zip(prompts, outputs, strict=True):
        tokens, logprobs = list(prompt), []
        for output in of_one:
            tokens.extend(output.token_ids)
            logprobs.extend((*output.prompt_logprobs, *output.logprobs))
        found.append((tokens, logprobs))
    return found, stats


@pytest.mark.parametrize(
    ("settings", "is_preempted"),
    [
        ({}, False),
        ({"max_num_batched_tokens": 24}, False),
        ({"num_gpu_blocks": 14, "block_size": 16}, True),
        ({"num_gpu_blocks": 14, "block_size": 16, "max_num_batched_tokens": 24}, True),
    ],
)
def test_every_token_is_scored_once_as_transformers_scores_it(
    folder: Path, settings: dict[str, Any], is_preempted: bool
) -> None:
    prompts = make_prompts(folder, [1, 2, 50, 90, 65, 90], shared=40)
    found, stats = score(folder, prompts, **settings)
    assert (stats.num_preemptions > 0) is is_preempted
    for tokens, logprobs in found:
        with torch.inference_mode():
            expected = load_oracle(folder)(torch.tensor([tokens])).logits[0].log_softmax(-1)
        assert [entry.token_id for entry in logprobs] == tokens[1:]
        for place, entry in enumerate(logprobs):
            assert entry.logprob == pytest.approx(expected[place, entry.token_id].item(), abs=1e-4)
            best = expected[place].topk(2).values.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)
            assert (entry.rank == 1) == (entry.token_id == entry.top[0][0])


def test_a_request_for_the_prompt_s_logprobs_alone_makes_no_token(folder: Path) -> None:
    engine = LLMEngine.from_config(engine_config(folder))
    engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=0))
    (output,) = engine.step()
    assert (output.token_ids, output.finish_reason) == ((), "length")
    assert len(output.prompt_logprobs) == 2
    assert not engine.has_unfinished()
    assert engine.stats().num_used_blocks == 0
