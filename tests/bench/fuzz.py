"""`python -m tests.bench.fuzz`: random requests against a real server, many at once.

Starts a server of tiny memorised and noisy models, sends requests of random fields and values
(`tests/contract/test_api_fuzz.py` makes them; `make test` sends a few hundred), drops some in
mid-answer, and says what came back. Ends with 1 on any 5xx, on a traceback in the log, or where a
block is missing from the pool at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.contract.server_process import ServerProcess
from tests.contract.test_api_fuzz import make_request
from tests.models.memorised import build_memorised
from tests.models.tiny import build_tiny

DROPPED = 0.02  # of the requests, whose client goes away


def main() -> int:
    arguments = _parse()
    seed, number = arguments.seed, arguments.requests
    failed = False
    for name, model in (("noise", build_tiny("qwen3-tied")), ("memorised", build_memorised())):
        with tempfile.TemporaryDirectory() as folder:
            server = _start(Path(folder) / "log", model)
            try:
                found = asyncio.run(_send(server, random.Random(seed), number // 2))
                found |= _end(server)
            finally:
                server.stop()
        print(json.dumps({"model": name, "seed": seed, **found}, indent=2), flush=True)
        failed |= bool(found["faults"]) or found["tracebacks"] > 0 or not found["pool_is_whole"]
    return int(failed)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _start(log: Path, model: Path) -> ServerProcess:
    return ServerProcess(
        log, str(model), "--device", "cpu", "--dtype", "float32", "--max-model-len", "512",
        "--block-size", "16", "--max-num-seqs", "16", "--num-gpu-blocks-override", "96",
        "--swap-space", "0.02", "--log-level", "warning",
    ).wait_ready()  # fmt: skip


async def _send(server: ServerProcess, source: random.Random, number: int) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    faults: list[str] = []
    requests = [make_request(source) for _ in range(number)]
    dropped = {place for place in range(number) if source.random() < DROPPED}
    places = iter(range(number))
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:

        async def client() -> None:
            for place in places:
                path, body = requests[place]
                limit = 0.005 if place in dropped else 120.0
                status, text = await _ask(session, path, body, limit)
                statuses[status] += 1
                if status not in ("200", "400", "dropped") or 'data: {"error"' in text:
                    faults.append(f"{status} {path} {json.dumps(body)} {text[:300]}")

        await asyncio.gather(*(client() for _ in range(16)))
    seconds = time.monotonic() - began
    return {
        "requests": number, "statuses": dict(sorted(statuses.items())), "faults": faults[:20],
        "seconds": round(seconds, 1), "requests_per_second": round(number / seconds, 1),
    }  # fmt: skip


async def _ask(
    session: aiohttp.ClientSession, path: str, body: dict[str, Any], seconds: float
) -> tuple[str, str]:
    """Return status and text; a client that is to go away does so after `seconds`."""
    try:
        async with asyncio.timeout(seconds), session.post(path, json=body) as response:
            return str(response.status), await response.text()
    except TimeoutError:
        return "dropped" if seconds < 1 else "no answer in time", ""
    except aiohttp.ClientError as error:
        return f"connection: {type(error).__name__}", str(error)


def _end(server: ServerProcess) -> dict[str, Any]:
    """Return what is left behind once nothing runs any more."""
    deadline = time.monotonic() + 30
    while True:
        stats = server.get("/stats")[1]
        if stats["num_requests_running"] + stats["num_requests_waiting"] == 0:
            break
        assert time.monotonic() < deadline, "requests go on that nobody waits for"
        time.sleep(0.05)
    pools = [(stats[f"num_free_{kind}_blocks"], stats[f"num_total_{kind}_blocks"])
             for kind in ("gpu", "cpu")]  # fmt: skip
    return {
        "pool_is_whole": all(free == total for free, total in pools),
        "preemptions": stats["num_preemptions"],
        "blocks_swapped_out": stats["num_blocks_swapped_out"],
        "tracebacks": server.log().count("Traceback"),
    }


if __name__ == "__main__":
    sys.exit(main())
