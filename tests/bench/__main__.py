"""`python -m tests.bench`: our engine against its peers and the machine's ceilings, in one run.

All engines are loaded side by side, each in its own process on the same cores, and take turns
row by row, so that whatever else the machine does hits all of them alike. Prints a table and
writes JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.engines import NUM_CORES, REPOSITORY, Engine, Runner, our_engine, peer_engines
from tests.bench.report import render
from tests.bench.servers import measure_servers, our_server, vllm_server
from tests.bench.work import ROWS, Row
from tests.models.qwen3 import build_random_qwen3


def main() -> None:
    arguments = _parse()
    model = arguments.model or build_random_qwen3()
    engines = [our_engine(model)]
    for peer in filter(None, arguments.peers.split(",")):
        engines += peer_engines(peer, model)
    rows = [row for row in ROWS if arguments.rows in row.name]
    result: dict[str, Any] = {"model": model.name, "repeats": arguments.repeats}
    result["rows"], result["ceilings"] = _measure_rows(rows, engines, arguments.repeats)
    if not arguments.no_http:
        result["servers"] = _measure_servers(engines, model, arguments.repeats)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(render(result))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add(
        "--peers", default="", help="transformers, vllm, openvino, or vllm:bfloat16 (one precision)"
    )
    add("--rows", default="", help="only rows whose name has this in it")
    add("--repeats", type=int, default=3, help="of each row; the table has the medians")
    add("--model", type=Path, help="a folder (default: the shape of Qwen3-0.6B, random)")
    add("--no-http", action="store_true", help="leave out the rows that start servers")
    add("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args()


def _measure_rows(
    rows: list[Row], engines: list[Engine], repeats: int
) -> tuple[dict[str, dict[str, list[float]]], list[Any]]:
    """Return each row's samples by engine, and the ceilings measured before each round."""
    samples: dict[str, dict[str, list[float]]] = {
        row.name: {engine.name: [] for engine in engines} for row in rows
    }
    ceilings = []
    with ExitStack() as stack:
        runners = [stack.enter_context(Runner(engine)) for engine in engines]
        for runner in runners:
            runner.run([[1_000] * 64] * 2, 4)
            runner.run([[1_001] * 1024], 1)  # the largest step: work memory is there from then on
        for repeat in range(repeats):
            ceilings.append(_measure_ceilings())
            for row in rows:
                for turn in range(row.turns):
                    for name, value in _measure_turn(row, runners, repeat, turn):
                        samples[row.name][name].append(value)
                        print(f"{row.name}: {name} {value:.3f}", file=sys.stderr)
    return samples, ceilings


def _measure_turn(
    row: Row, runners: list[Runner], repeat: int, turn: int
) -> Iterator[tuple[str, float]]:
    """Measure each engine once, in an order that each turn begins with the next of them."""
    begin = (repeat + turn) % len(runners)
    for runner in runners[begin:] + runners[:begin]:
        if row.needs_batching and not runner.engine.has_batching:
            continue
        # Each row its own prompts: else its first words would be another's, and cached.
        source = random.Random(f"{row.name} {repeat} {turn}")
        yield runner.engine.name, row.measure(runner.run, source)


def _measure_ceilings() -> Any:
    words = ["taskset", "-c", f"0-{NUM_CORES - 1}", sys.executable, "-m", "tests.bench.ceilings"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return json.loads(done.stdout)


def _measure_servers(
    engines: list[Engine], model: Path, repeats: int
) -> dict[str, dict[str, float]]:
    commands = [our_server(model)]
    # In the first precision only: bfloat16, unless another was asked for.
    commands += [vllm_server(e, model) for e in engines if e.name.startswith("vllm")][:1]
    return measure_servers(commands, repeats)


if __name__ == "__main__":
    main()
