"""Measures what moving a block and computing a token take, on this device and with this model.

Called once by `worker`, when it is built and nobody has yet written to the cache: it uses the
blocks from 0 on. About 0.3 s for a model of 0.6 billion parameters on two cores.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

import torch

from qwen_engine.config import EngineConfig
from qwen_engine.preemption import PreemptionCosts
from qwen_engine.sequence import (
    BlockCopies,
    SamplingParams,
    ScheduledBatch,
    ScheduledSequence,
    Sequence,
)

# A chunk long enough to show the rate of prompts: on a GPU one of decode's size would not.
_NUM_TOKENS = {"cpu": 32, "cuda": 512}
_MOST_BLOCKS = 32
_NUM_RUNS = 2  # the faster counts


def measure_costs(
    config: EngineConfig,
    *,
    compute: Callable[[ScheduledBatch], object],
    move: Callable[[BlockCopies], None],
) -> PreemptionCosts:
    """Time a chunk of a prompt, and the copy of some blocks out and in."""
    num_tokens = min(
        _NUM_TOKENS[config.device],
        config.max_num_batched_tokens,
        config.max_model_len,
        config.num_gpu_blocks * config.block_size,
    )
    num_blocks = min(_MOST_BLOCKS, config.num_gpu_blocks, config.num_cpu_blocks)
    pairs = tuple((block, block) for block in range(num_blocks))
    wait = torch.cuda.synchronize if config.device == "cuda" else _nothing_to_wait_for
    chunk, copies = _chunk(num_tokens, config.block_size), BlockCopies(pairs, pairs)
    return PreemptionCosts(
        seconds_per_block=_fastest(lambda: move(copies), wait) / (2 * num_blocks),
        seconds_per_token=_fastest(lambda: compute(chunk), wait) / num_tokens,
    )


def _chunk(num_tokens: int, block_size: int) -> ScheduledBatch:
    """Return a batch of one sequence that lies in the first blocks."""
    sequence = Sequence(
        request_id="measurement",
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        max_num_tokens=num_tokens,
        params=SamplingParams(max_tokens=1, temperature=0.0),
        block_table=array("i", range(-(-num_tokens // block_size))),
    )
    entry = ScheduledSequence(sequence, start=0, num_tokens=num_tokens, needs_token=False)
    return ScheduledBatch((entry,), num_tokens)


def _fastest(work: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the seconds of the fastest run; the first one loads kernels and touches pages."""
    seconds = []
    for _ in range(_NUM_RUNS):
        wait()
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _nothing_to_wait_for() -> None:
    """On a CPU, what has returned is done."""
