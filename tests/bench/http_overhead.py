"""`python -m tests.bench.http_overhead`: the server's processor time a token, by number of streams.

The whole server with everything real but the model, which is played by a stub: HTTP, JSON, events,
text, scheduling; each token is an event of its own. Clients stream completions from another
process. A token's cost must not grow with the number of streams; it falls, as more tokens share a
step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.bench.soak import process_numbers
from tests.bench.stub import StubWorker
from tests.contract.server_process import ServerProcess
from tests.models.smollm2 import build_smollm2

NUM_TOKENS = 100  # of each answer
STEP_SECONDS = 0.03  # the model's; without any, readers would get several tokens in one event
MAX_RATIO = 1.25  # of a token's cost at the most streams to that at 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all tokens of one run."""

    streams: int
    cpu_us: float  # the server's processor time a token
    tokens_per_second: float


async def measure(server: ServerProcess, streams: int) -> Cost:
    """Have so many clients stream two answers one after the other, a lone one four."""
    rounds = 4 if streams == 1 else 2
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before, start = process_numbers(server.pid)[1], loop.time()
        await asyncio.gather(
            *(_stream(session, server.url, number, rounds) for number in range(streams))
        )
        seconds, cpu = loop.time() - start, process_numbers(server.pid)[1] - before
    num_tokens = streams * rounds * NUM_TOKENS
    return Cost(streams, 1e6 * cpu / num_tokens, num_tokens / seconds)


async def _stream(session: aiohttp.ClientSession, url: str, number: int, rounds: int) -> None:
    body = {"prompt": [number + 300] * 64, "max_tokens": NUM_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True}  # fmt: skip
    for _ in range(rounds):
        async with session.post(f"{url}/v1/completions", json=body) as response:
            text = await response.text()
        if response.status != 200 or not text.endswith("data: [DONE]\n\n"):
            raise RuntimeError(f"{response.status}: {text[-200:]}")


def serve_stub(words: list[str]) -> int:
    """Serve with the stub in the worker's place."""
    from qwen_engine import cli, llm_engine

    def make(config: object, model_config: object, **_: object) -> StubWorker:
        return StubWorker(
            config.block_size,  # type: ignore[attr-defined]
            vocab_size=model_config.vocab_size,  # type: ignore[attr-defined]
            step_seconds=STEP_SECONDS,
        )

    llm_engine.Worker = make  # type: ignore[assignment,misc]
    return cli.run(["serve", *words])


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        return serve_stub(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.http_overhead", description=__doc__
    )
    parser.add_argument("--streams", default="1,8,64,256")
    counts = [int(n) for n in parser.parse_args().streams.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(
            Path(folder) / "server.log", str(build_smollm2()), "--device", "cpu",
            "--max-model-len", "512", "--block-size", "16", "--num-gpu-blocks-override", "8192",
            "--max-num-seqs", str(max(counts)), module="tests.bench.http_overhead",
        )  # fmt: skip
        try:
            server.wait_ready()
            costs = [asyncio.run(measure(server, count)) for count in counts]
        finally:
            server.stop()
    print("| streams | CPU a token, µs | tokens/s |\n|---|---|---|")
    for cost in costs:
        print(f"| {cost.streams} | {cost.cpu_us:.0f} | {cost.tokens_per_second:,.0f} |")
    few = next((cost for cost in costs if cost.streams == 8), costs[0])
    ratio = costs[-1].cpu_us / few.cpu_us
    print(f"\n{costs[-1].streams} streams cost {ratio:.2f} × as much a token as {few.streams}")
    return 1 if ratio > MAX_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
