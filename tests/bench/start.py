"""`python -m tests.bench.start`: how long our server takes from its exec to its first token.

Starts it several times, and in turns with each start a Python that only imports torch: the floor of
everything that computes with torch. Prints the medians: the stages as the server tells them, when
/ready says 200, the first token of the first request, and that of a second, so that nothing hides
behind "ready". Processor seconds are what all cores spent until then: on a machine with other work
the only figure that can be compared. Modules must have been compiled, as `pip install` does; the
script compiles our own.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.bench.engines import NUM_CORES, REPOSITORY
from tests.bench.idle import processor_seconds
from tests.bench.servers import our_server, running_server
from tests.models.qwen3 import build_random_qwen3

PROMPT_TOKENS = 32
TARGET_SECONDS = 3.0


def measure_start(model: Path) -> dict[str, float]:
    """Return the seconds of one start."""
    with running_server(our_server(model)) as (port, process, seconds_to_ready):
        used = processor_seconds(process.pid)
        first = _seconds(lambda: _complete(port, 1))
        second = _seconds(lambda: _complete(port, 2))
        stages = json.loads(_get(f"http://127.0.0.1:{port}/stats"))["start_seconds"]
    return {
        **stages,
        "start to /ready": seconds_to_ready,
        "start to /ready, processor": used,
        "first request": first,
        "second request": second,
        "start to first token": seconds_to_ready + first,
    }


def _measure_import() -> dict[str, float]:
    words = ["taskset", "-c", f"0-{NUM_CORES - 1}", sys.executable, "-c", "import torch"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(NUM_CORES)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = _seconds(lambda: subprocess.run(words, check=True, cwd=REPOSITORY, env=environment))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"import torch alone": seconds, "import torch alone, processor": used}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _complete(port: int, seed: int) -> None:
    """Have one token computed for a prompt that no other request had."""
    prompt = [1000 * seed + place for place in range(PROMPT_TOKENS)]
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        response.read()


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        content: bytes = response.read()
    return content


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start", description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a folder (default: Qwen3-0.6B's shape, random)")
    arguments = parser.parse_args()
    compileall.compile_dir(REPOSITORY / "engine" / "qwen_engine", quiet=1)
    model = arguments.model or build_random_qwen3()
    measure_start(model)  # reads the files into memory
    rows: dict[str, list[float]] = {}
    for _ in range(arguments.starts):
        figures = _measure_import() | measure_start(model)
        print({name: round(value, 2) for name, value in figures.items()}, file=sys.stderr)
        for name, value in figures.items():
            rows.setdefault(name, []).append(value)
    print("| stage | median, s | best, s |\n|---|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} |")
    is_met = statistics.median(rows["start to first token"]) <= TARGET_SECONDS
    print(f"\ntarget {TARGET_SECONDS:g} s: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
