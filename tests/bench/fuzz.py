"""`python -m tests.bench.fuzz`: random requests against a real server, many at once.

Starts a server of a tiny model that says noise, then of one that knows dialogues, each with a pool
smaller than what is asked of it at once. Sends requests of random fields and values
(`tests/contract/test_api_fuzz.py` makes them; `make test` sends a few hundred), drops some in
mid-answer, and says what came back. Ends with 1 on any 5xx, on a traceback in the log, or where a
block is missing from a pool at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.contract.server_process import ServerProcess
from tests.contract.test_api_fuzz import make_request
from tests.models.memorised import build_memorised
from tests.models.tiny import build_tiny

NUM_CLIENTS = 32
DROPPED = 0.02  # of the requests, whose client goes away
SECONDS_TO_LEAVE = 0.005
SECONDS_TO_ANSWER = 120.0
NUM_LINES = 10  # of progress
_LATE = "no answer in time"
_LIVE = ("num_requests_running", "num_requests_waiting", "num_requests_swapped")
_EXPECTED = ("200", "400", "left")
_MOST_FAULTS = 20  # shown with their words; all are counted


@dataclass
class Tally:
    """What came back so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of the answers, refusals too
    faults: list[str] = field(default_factory=list)


def main() -> int:
    arguments = _parse()
    print(f"{arguments.requests:,} requests, seed {arguments.seed}", flush=True)
    is_whole = True
    for name, build in (
        ("noise", lambda: build_tiny("qwen3-tied")),
        ("memorised", build_memorised),
    ):
        with tempfile.TemporaryDirectory() as folder:
            server = _start(Path(folder) / "log", build())
            try:
                is_whole &= _fuzz(
                    server, name, random.Random(arguments.seed), arguments.requests // 2
                )
            finally:
                server.stop()
    print("no 5xx, no traceback, no block missing" if is_whole else "FAILED", flush=True)
    return 0 if is_whole else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=20_000, help="in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _start(log: Path, model: Path) -> ServerProcess:
    """Start one whose pool two or three of its requests fill.

    Its log is at the level `info`: below that it does not say where it listens.
    """
    return ServerProcess(
        log, str(model), "--device", "cpu", "--dtype", "float32", "--max-model-len", "256",
        "--block-size", "16", "--max-num-seqs", "32", "--num-gpu-blocks-override", "24",
        "--swap-space", "0.02", "--preemption-mode", "swap",
    ).wait_ready()  # fmt: skip


def _fuzz(server: ServerProcess, name: str, source: random.Random, number: int) -> bool:
    """Send so many, print what came of them, and say whether all is well."""
    began = time.monotonic()
    tally = asyncio.run(_send(server, source, number))
    seconds = time.monotonic() - began
    left_behind = _left_behind(server)
    median, last = (1000 * q for q in _quantiles(tally.seconds))
    print(f"{name}: {number:,} requests in {seconds:.0f} s, {number / seconds:.0f} a second")
    print(f"  {_line(tally)}; median {median:.0f} ms, p99 {last:.0f} ms; {_work(server)}")
    for fault in (*tally.faults[:_MOST_FAULTS], *left_behind):
        print(f"  {fault}")
    return not tally.faults and not left_behind


async def _send(server: ServerProcess, source: random.Random, number: int) -> Tally:
    tally = Tally()
    requests = (make_request(source) for _ in range(number))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        await asyncio.gather(
            *(
                _client(session, requests, tally, number, random.Random(seed))
                for seed in range(NUM_CLIENTS)
            )
        )
    return tally


async def _client(
    session: aiohttp.ClientSession,
    requests: Iterator[tuple[str, dict[str, Any]]],
    tally: Tally,
    number: int,
    patience: random.Random,
) -> None:
    for path, body in requests:
        leaves = patience.random() < DROPPED
        began = time.monotonic()
        limit = SECONDS_TO_LEAVE if leaves else SECONDS_TO_ANSWER
        status, text = await _ask(session, path, body, limit)
        if leaves and status == _LATE:
            status = "left"
        else:
            tally.seconds.append(time.monotonic() - began)
        tally.outcomes[status] += 1
        if status not in _EXPECTED or 'data: {"error"' in text:
            tally.faults.append(f"{status} {path} {json.dumps(body)} {text[:300]}")
        num_ended = tally.outcomes.total()
        if num_ended % max(1, number // NUM_LINES) == 0:
            print(f"  {num_ended:,}: {_line(tally)}", flush=True)


async def _ask(
    session: aiohttp.ClientSession, path: str, body: dict[str, Any], seconds: float
) -> tuple[str, str]:
    """Return the status, or what stands for it, and the text."""
    try:
        async with asyncio.timeout(seconds), session.post(path, json=body) as response:
            return str(response.status), await response.text()
    except TimeoutError:
        return _LATE, ""
    except aiohttp.ClientError as error:
        return f"connection: {type(error).__name__}", str(error)


def _quantiles(seconds: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


def _line(tally: Tally) -> str:
    return ", ".join(f"{count:,} × {what}" for what, count in sorted(tally.outcomes.items()))


def _work(server: ServerProcess) -> str:
    stats = server.get("/stats")[1]
    names = {
        "num_preemptions": "preempted", "num_blocks_swapped_out": "blocks swapped out",
        "num_blocks_swapped_in": "swapped in", "prefix_cache_hits": "tokens found cached",
    }  # fmt: skip
    return ", ".join(f"{stats[key]:,} {what}" for key, what in names.items())


def _left_behind(server: ServerProcess) -> list[str]:
    """Return, in words, what is there once nobody asks any more and should not be."""
    stats = _idle_stats(server)
    pools = {
        kind: (stats[f"num_free_{kind}_blocks"], stats[f"num_total_{kind}_blocks"])
        for kind in ("gpu", "cpu")
    }
    faults = [
        f"{kind} blocks: {free} free of {total}"
        for kind, (free, total) in pools.items()
        if free != total
    ]
    faults += [f"{stats[key]} {key}" for key in _LIVE if stats[key]]
    log = server.log()
    if "Traceback" in log:
        faults.append(log[log.index("Traceback") :][:2000])
    return faults


def _idle_stats(server: ServerProcess) -> dict[str, Any]:
    """Return the numbers once nothing runs; those of the last look if something goes on."""
    deadline = time.monotonic() + 30
    while True:
        stats: dict[str, Any] = server.get("/stats")[1]
        if not any(stats[key] for key in _LIVE) or time.monotonic() > deadline:
            return stats
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
