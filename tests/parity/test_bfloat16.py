"""In bfloat16, with packed weights and the C++ kernels: as near to float32 as transformers' own.

Ids may differ where two are nearly as likely, and then so does all that follows. So of each id that
the engine chose and of the likeliest beside it, the logprob is held against what transformers says
in float32 to the same tokens, and transformers' own bfloat16 against the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen_engine.engine_stats import EngineStats
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.sequence import SamplingParams, TokenLogprobs
from tests.models.smollm2 import build_smollm2
from tests.parity.greedy import (
    NUM_TOKENS,
    Prompt,
    engine_config,
    load_oracle,
    make_prompts,
    run_requests,
)

NUM_LIKELIEST = 5
# Of the mean error: ours ÷ transformers'. In windows of 192 tokens it was 0.87 to 1.09.
MOST_TIMES = 1.25
# Of one logprob, in nats. Of 23,000 ours were off by 0.50 at most, transformers' own by 0.63.
LARGEST_ERROR = 1.0
# By how much, in nats and in the mean, the likeliest id was likelier than the chosen one: 0.0010
# over 9,000 tokens. The largest says nothing: where two are as likely but for rounding, either is
# chosen, and of 3,000 choices one is off by 0.26 in transformers' own bfloat16 too.
MEAN_REGRET = 0.005


@pytest.mark.parametrize("num_batched_tokens", [1024, 48], ids=["whole", "chunked"])
@pytest.mark.parametrize("has_library", [True, False], ids=["as built", "torch alone"])
def test_bfloat16_is_as_near_to_float32_as_transformers_own(
    num_batched_tokens: int, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_library:
        monkeypatch.setattr(NativeLibrary, "find", lambda: None)
    folder = build_smollm2()
    prompts = make_prompts(folder, [3, 17, 64, 130], shared=16)
    assert_near(folder, prompts, max_num_batched_tokens=num_batched_tokens, num_gpu_blocks=128)


def test_what_is_swapped_and_chunked_is_as_near() -> None:
    folder = build_smollm2()
    prompts = make_prompts(folder, [50, 17, 64], shared=16)
    stats = assert_near(
        folder,
        prompts,
        max_num_batched_tokens=48,
        num_gpu_blocks=12,
        num_cpu_blocks=12,
        preemption_mode="swap",
    )
    assert stats.blocks_swapped_in > 0


def assert_near(folder: Path, prompts: Sequence[Prompt], **settings: Any) -> EngineStats:
    """Answer the prompts in bfloat16 and weigh every token; return the engine's numbers."""
    params = SamplingParams(
        max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, logprobs=NUM_LIKELIEST
    )
    config = engine_config(folder, dtype="bfloat16", **settings)
    outputs, stats = run_requests(config, prompts, params)
    answers = [[scored for output in of_one for scored in output.logprobs] for of_one in outputs]
    assert [len(answer) for answer in answers] == [NUM_TOKENS] * len(prompts)
    ours = torch.tensor([[value for _, value in scored.top] for scored in chain(*answers)])
    likeliest = torch.tensor([[token for token, _ in scored.top] for scored in chain(*answers)])
    exact = score(folder, torch.float32, prompts, answers)
    expected = exact.gather(1, likeliest)
    theirs = score(folder, torch.bfloat16, prompts, answers).gather(1, likeliest)
    error, their_error = (ours - expected).abs(), (theirs - expected).abs()
    assert error.max() <= LARGEST_ERROR
    assert error.mean() <= MOST_TIMES * their_error.mean()
    chosen = torch.tensor([[scored.token_id] for scored in chain(*answers)])
    assert (exact.amax(dim=1) - exact.gather(1, chosen).squeeze(1)).mean() <= MEAN_REGRET
    return stats


def score(
    folder: Path,
    dtype: torch.dtype,
    prompts: Sequence[Prompt],
    answers: Sequence[Sequence[TokenLogprobs]],
) -> torch.Tensor:
    """Return transformers' logprobs [tokens of all answers][vocabulary]."""
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = torch.tensor([[*prompt, *(scored.token_id for scored in answer)]])
        with torch.inference_mode():
            logits = load_oracle(folder, dtype)(tokens).logits[0, len(prompt) - 1 : -1]
        found.append(logits.float().log_softmax(dim=-1))
    return torch.cat(found)
