"""`python -m tests.bench.growth`: many requests through a small pool; nothing may grow.

Requests with prompts of many lengths, some sharing a prefix, with salts, priorities, forks and
aborts, in a pool that holds a fifth of those that are there at once, so that there is always
swapping. The table has, for each tenth of the requests, resident memory and the processor time of
a step. It fails if either grows from the third tenth (when every cache is as full as it gets) to
the last, or if a block is left used. The model is played by a stub, so that the loop is what is
seen; with --model it is a real one (`tiny`, or a folder).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams, SchedulingParams
from tests.bench.stub import make_stub_engine
from tests.models.tiny import build_tiny
from tests.parity.greedy import engine_config

MAX_GROWTH_BYTES = 4 << 20  # malloc's own ups and downs; a leak of 1 KB a request makes 8 MB
MAX_SLOWDOWN = 1.25  # processor time, on cores whose caches others use too
AT_ONCE = 64
POOL = {"num_gpu_blocks": 64, "num_cpu_blocks": 128, "block_size": 16, "max_num_seqs": AT_ONCE,
        "max_num_batched_tokens": 512, "preemption_mode": "swap"}  # fmt: skip
IDS = 256


@dataclass(frozen=True, slots=True)
class Tenth:
    """What one tenth of the requests came to."""

    resident_bytes: int  # at its end
    step_ms: float  # of processor time, mean
    num_steps: int
    num_preemptions: int
    num_swapped_in: int  # blocks


class Load:
    """Keeps AT_ONCE requests in the engine and aborts some of them."""

    def __init__(self, engine: LLMEngine, source: random.Random) -> None:
        self._engine = engine
        self._source = source
        self._prefixes = [self._ids(48) for _ in range(8)]
        self._live: dict[str, int] = {}  # id → the step to abort it at, 0 for none
        self._num_steps = 0
        self.num_added = 0

    def run(self, num_requests: int) -> Tenth:
        """Add so many, each as soon as another ends; those still here run on in the next tenth."""
        end, seconds = self.num_added + num_requests, []
        before = self._engine.stats()
        while self.num_added < end:
            while len(self._live) < AT_ONCE and self.num_added < end:
                self._add_family()
            seconds.append(self._step())
        after = self._engine.stats()
        return Tenth(
            resident_bytes(), 1000 * fmean(seconds), len(seconds),
            after.num_preemptions - before.num_preemptions,
            after.blocks_swapped_in - before.blocks_swapped_in,
        )  # fmt: skip

    def finish(self) -> None:
        while self._engine.has_unfinished():
            self._step()

    def _step(self) -> float:
        self._num_steps += 1
        for name in [name for name, at in self._live.items() if at == self._num_steps]:
            self._engine.abort(name)
            del self._live[name]
        start = time.process_time()  # of a processor: neighbours hardly change it
        outputs = self._engine.step()
        seconds = time.process_time() - start
        for output in outputs:
            if output.finish_reason is not None:
                del self._live[output.request_id]
        return seconds

    def _add_family(self) -> None:
        source = self._source
        start = source.choice(self._prefixes) if source.random() < 0.5 else []
        prompt = [*start, *self._ids(source.randint(1, 80))]
        salt, priority = source.choice([None, None, "a", "b"]), source.randint(-1, 1)
        params = SamplingParams(max_tokens=source.randint(1, 60), temperature=0.0, ignore_eos=True)
        parent = str(self.num_added)
        for index in range(source.choice([1, 1, 1, 3])):
            name = str(self.num_added)
            fork_of = parent if index else None
            scheduling = SchedulingParams(priority=priority, cache_salt=salt, fork_of=fork_of)
            self._engine.add_request(name, prompt, params, scheduling)
            is_aborted = source.random() < 0.1
            self._live[name] = self._num_steps + source.randint(1, 40) if is_aborted else 0
            self.num_added += 1

    def _ids(self, length: int) -> list[int]:
        return [self._source.randrange(IDS) for _ in range(length)]


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_tenths(load: Load, num_requests: int) -> Iterator[Tenth]:
    print("| requests | resident, MiB | a step, CPU ms | steps | preempted | swapped in, blocks |")
    print("|---|---|---|---|---|---|")
    for _ in range(10):
        tenth = load.run(num_requests // 10)
        print(
            f"| {load.num_added:,} | {tenth.resident_bytes / 2**20:.1f} | {tenth.step_ms:.3f} "
            f"| {tenth.num_steps:,} | {tenth.num_preemptions:,} | {tenth.num_swapped_in:,} |",
            flush=True,
        )
        yield tenth


def faults_of(tenths: list[Tenth], engine: LLMEngine) -> list[str]:
    """Return what is wrong, in sentences."""
    stats, faults = engine.stats(), []
    growth = tenths[-1].resident_bytes - tenths[2].resident_bytes
    slowdown = tenths[-1].step_ms / tenths[2].step_ms
    if growth > MAX_GROWTH_BYTES:
        faults.append(f"resident memory grew by {growth:,} bytes (at most {MAX_GROWTH_BYTES:,})")
    if slowdown > MAX_SLOWDOWN:
        faults.append(f"a step took {slowdown:.2f} × as long at the end (at most {MAX_SLOWDOWN})")
    if stats.num_used_blocks or stats.num_used_swap_blocks:
        faults.append(f"blocks are left: {stats.num_used_blocks}, {stats.num_used_swap_blocks}")
    if not tenths[-1].num_swapped_in:
        faults.append("nothing was swapped in: the pool was not small")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--model", help="a real model: tiny, or a folder (default: a stub)")
    arguments = parser.parse_args()
    if arguments.model is None:
        engine, _ = make_stub_engine(**POOL)
    else:
        folder = build_tiny("qwen3-tied") if arguments.model == "tiny" else Path(arguments.model)
        threads = 1 if arguments.model == "tiny" else 0  # matrices so small are slower on two
        engine = LLMEngine.from_config(engine_config(folder, num_threads=threads, **POOL))
    load = Load(engine, random.Random(1))
    tenths = list(run_tenths(load, arguments.requests))
    load.finish()
    faults = faults_of(tenths, engine)
    print("\n".join(faults) or "nothing grew, and every block is free")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
