"""`python -m tests.bench.preemption`: what swapping costs, what recomputing, and what is chosen.

For sequences of several lengths: the seconds to move their blocks out and in again, the seconds to
compute them again in chunks, each measured as the engine does it, and what the rule of
`qwen_engine.preemption` says from the two rates that it measured at start. The rule is right where
the column says the cheaper one.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from qwen_engine.config import EngineConfig
from qwen_engine.model_config import ModelConfig
from qwen_engine.preemption import PreemptionPolicy
from qwen_engine.sequence import (
    BlockCopies,
    SamplingParams,
    ScheduledBatch,
    ScheduledSequence,
    Sequence,
)
from qwen_engine.worker import Worker
from tests.models.qwen3 import build_random_qwen3
from tests.models.smollm2 import build_smollm2

LENGTHS = (16, 64, 256, 1024)
CHUNK = 512
NUM_RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.preemption", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, qwen3-0.6b or a folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    builders = {"smollm2": build_smollm2, "qwen3-0.6b": build_random_qwen3}
    folder = builders.get(arguments.model, lambda: Path(arguments.model))()
    num_blocks = max(LENGTHS) // 16
    config = EngineConfig(
        model_path=folder,
        max_model_len=max(LENGTHS) + 1,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_blocks,
        max_num_batched_tokens=CHUNK,
        dtype=arguments.dtype,
        device=arguments.device,
    )
    worker = Worker(config, ModelConfig.from_folder(folder))
    policy = PreemptionPolicy("auto", worker.measure_preemption())
    print(
        f"{folder.name}, {config.dtype}: {policy.costs.seconds_per_block * 1e6:,.0f} µs a block "
        f"one way, {policy.costs.seconds_per_token * 1e6:,.0f} µs a token\n\n"
        "| tokens | swap out and in, ms | recompute, ms | ratio | the rule says |\n"
        "|---|---|---|---|---|"
    )
    for length in LENGTHS:
        swap = _median(lambda length=length: _swap(worker, length))
        recompute = _median(lambda length=length: _recompute(worker, length))
        is_swapped = policy.prefers_swap(num_blocks=-(-length // 16), num_tokens=length)
        print(
            f"| {length:,} | {1000 * swap:.2f} | {1000 * recompute:.1f} | {recompute / swap:.1f} "
            f"| {'swap' if is_swapped else 'recompute'} |"
        )


def _swap(worker: Worker, length: int) -> None:
    pairs = tuple((block, block) for block in range(-(-length // 16)))
    worker._swap_space.execute(BlockCopies(pairs))
    worker._swap_space.execute(BlockCopies((), pairs))


def _recompute(worker: Worker, length: int) -> None:
    sequence = Sequence(
        request_id="recomputed",
        token_ids=[5] * length,
        num_prompt_tokens=length,
        max_num_tokens=length + 1,
        params=SamplingParams(max_tokens=1, temperature=0.0),
        block_table=array("i", range(-(-length // 16))),
    )
    for start in range(0, length, CHUNK):
        count = min(CHUNK, length - start)
        entry = ScheduledSequence(sequence, start, count, start + count == length)
        worker.execute(ScheduledBatch((entry,), count))


def _median(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


if __name__ == "__main__":
    main()
