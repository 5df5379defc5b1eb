"""Runs both sides, one process after another, and prints what they came to.

Called by `cli`. Owns the order: ours first, because it plans, and the other gets the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, get_args

from qwen_engine.bench_flags import BenchSettings
from qwen_engine.comparison.table import render, summarise
from qwen_engine.comparison.work import Figures, Load, Work

RunJob = Callable[[dict[str, Any]], dict[str, Any]]
LONGEST_LEN = 4096  # where nobody says: computing more takes minutes on a CPU
SIDES = ("qwen-engine", "transformers")


class SideError(Exception):
    """A side's process ended without figures."""


def run_comparison(
    settings: BenchSettings, words: Sequence[str], *, run_job: RunJob | None = None
) -> int:
    """Measure both sides and print; return the exit code.

    words: the command line's, which each process of ours reads again.
    """
    try:
        result = _measure(settings, words, run_job or _run_process)
    except SideError as error:
        print(f"qwen-engine bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if settings.output == "json" else render(result))
    return 0


def _measure(settings: BenchSettings, words: Sequence[str], run_job: RunJob) -> dict[str, Any]:
    load = Load(
        num_prompts=settings.num_prompts,
        input_len=settings.input_len,
        output_len=settings.output_len,
        at_once=settings.max_concurrency,
        longest_len=settings.longest_len or 0,
        seed=settings.seed,
    )
    found: dict[str, dict[str, Figures]] = {side: {} for side in SIDES}
    facts: dict[str, Any] = {}
    for work in get_args(Work):
        for side in SIDES:
            print(f"{side}: {work}", file=sys.stderr)
            job = {"side": side, "work": work, "load": asdict(load), "words": [*words]}
            answer = run_job({**job, "facts": facts})
            facts = answer.get("facts", facts)
            if not load.longest_len:
                load = replace(load, longest_len=min(LONGEST_LEN, facts["model_max_len"]))
            found[side][work] = answer["figures"]
    return {
        "model": settings.engine.model if settings.engine else "",
        "versions": {"qwen-engine": version("qwen-engine"), "transformers": version("transformers"),
                     "torch": version("torch")},
        "dtype": facts["dtype"],
        "device": facts["device"],
        "num_threads": facts["num_threads"],
        "memory_bytes": facts["memory_bytes"],
        "load": asdict(load),
        "sides": {side: summarise(found[side], facts["memory_bytes"]) for side in SIDES},
    }  # fmt: skip


def _run_process(job: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-m", "qwen_engine.comparison", json.dumps(job)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if "figures" not in answer:
        # Killed, as by a lack of memory, it says nothing; libraries end with a traceback.
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        why = answer.get("error", f"exit code {done.returncode}: {last}")
        raise SideError(f"{job['side']} failed at {job['work']}: {why}")
    return answer
