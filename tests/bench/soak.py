"""`python -m tests.bench.soak --minutes 30`: a server under random clients, and what it leaves.

A real server with a pool too small for what it is asked, swap space, and a short queue. Clients
stream or not, with several choices, salts, priorities, grammars, penalties; some hang up, some
ask for what cannot be. A line a sample goes to standard output. In the end it fails if

- any answer was a 5xx, broken off, or an error inside a stream; or the log has a traceback;
- a block of either pool is used, or free is not total, once the last client is gone;
- resident memory grew: the least of the last quarter's samples is above that of the second
  quarter by more than 2 % and 8 MiB (malloc's ups and downs stay below; the first quarter fills
  caches);
- a token costs more: processor time per token of the last quarter above 1.25 × the second's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.soak_load import Client, Tally
from tests.contract.server_process import ServerProcess
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import build_tiny

NUM_CLIENTS = 24
MAX_GROWTH_SHARE, MAX_GROWTH_BYTES = 0.02, 8 << 20
MAX_SLOWDOWN = 1.25
NUM_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one moment, and what it did since the one before."""

    seconds: float
    num_requests: int
    resident_bytes: int
    cpu_seconds: float
    num_tokens: float  # generated
    seconds_between_tokens: float  # summed over all tokens
    stats: dict[str, Any]


async def soak(server: ServerProcess, *, seconds: float, num_samples: int = NUM_SAMPLES) -> Report:
    """Run the clients for so long, then wait until the server is idle."""
    tally, samples = Tally(), []
    loop = asyncio.get_running_loop()
    start = loop.time()
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        clients = asyncio.gather(
            *(
                Client(session, server.url, seed, tally).run(start + seconds)
                for seed in range(NUM_CLIENTS)
            )
        )
        print(_HEAD)
        samples.append(await _sample(session, server, 0.0, tally))
        for number in range(1, num_samples + 1):
            await asyncio.sleep(start + seconds * number / num_samples - loop.time())
            samples.append(await _sample(session, server, loop.time() - start, tally))
            print(_row(samples[-2], samples[-1]), flush=True)
        await clients
        final = await _idle_stats(session, server)
    return Report(tally, samples, final, server.log())


async def _sample(
    session: aiohttp.ClientSession, server: ServerProcess, seconds: float, tally: Tally
) -> Sample:
    async with session.get(f"{server.url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    metrics = {sample.name: sample.value for family in families for sample in family.samples}
    async with session.get(f"{server.url}/stats") as response:
        stats = await response.json()
    resident_bytes, cpu_seconds = process_numbers(server.pid)
    return Sample(
        seconds=seconds,
        num_requests=tally.num_requests,
        resident_bytes=resident_bytes,
        cpu_seconds=cpu_seconds,
        num_tokens=metrics["vllm:generation_tokens_total"],
        seconds_between_tokens=metrics["vllm:inter_token_latency_seconds_sum"],
        stats=stats,
    )


def process_numbers(pid: int) -> tuple[int, float]:
    """Return resident bytes and the processor's seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


async def _idle_stats(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, Any]:
    """Return the numbers once nothing is there; those of the last look if something stays."""
    stats: dict[str, Any] = {}
    for _ in range(100):
        async with session.get(f"{server.url}/stats") as response:
            stats = await response.json()
        if not any(stats[f"num_requests_{state}"] for state in ("running", "waiting", "swapped")):
            break
        await asyncio.sleep(0.1)
    return stats


@dataclass(frozen=True, slots=True)
class Report:
    """All that was seen."""

    tally: Tally
    samples: Sequence[Sample]  # the first one before the first request
    final: dict[str, Any]  # /stats of the idle server
    log: str

    def faults(self) -> list[str]:
        """Return what is wrong, in sentences."""
        return [*self.tally.failures, *self._leaks(), *self._growth()]

    def _leaks(self) -> list[str]:
        stats = self.final
        faults = [
            f"{stats[f'num_requests_{state}']} requests are still {state}"
            for state in ("running", "waiting", "swapped")
            if stats[f"num_requests_{state}"]
        ]
        for pool in ("gpu", "cpu"):
            used, free, total = (
                stats[f"num_{state}_{pool}_blocks"] for state in ("used", "free", "total")
            )
            if used or free != total:
                faults.append(f"{pool} blocks: {used} used, {free} free of {total}")
        if "Traceback" in self.log:
            faults.append(self.log[self.log.index("Traceback") :][:2000])
        if not stats["num_blocks_swapped_in"]:
            faults.append("nothing was swapped: the pool was not small")
        return faults

    def _growth(self) -> list[str]:
        """Compare the second quarter, when caches are full, with the last."""
        quarter = len(self.samples) // 4
        if quarter < 2:
            return []  # too short to tell growth from noise
        second, last = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        faults = []
        before, after = (min(s.resident_bytes for s in some) for some in (second, last))
        if after - before > max(MAX_GROWTH_BYTES, MAX_GROWTH_SHARE * before):
            faults.append(f"resident memory grew from {before:,} to {after:,} bytes")
        slowdown = _cpu_per_token(last) / _cpu_per_token(second)
        if slowdown > MAX_SLOWDOWN:
            faults.append(f"a token took {slowdown:.2f} × the processor time at the end")
        return faults


def _cpu_per_token(samples: Sequence[Sample]) -> float:
    first, last = samples[0], samples[-1]
    return (last.cpu_seconds - first.cpu_seconds) / max(1, last.num_tokens - first.num_tokens)


_HEAD = (
    "| minute | requests | tokens/s | resident, MiB | CPU ms a token | ms between tokens "
    "| used | swapped | preempted | swapped in |\n|---|---|---|---|---|---|---|---|---|---|"
)


def _row(before: Sample, now: Sample) -> str:
    tokens = max(1, now.num_tokens - before.num_tokens)
    between = now.seconds_between_tokens - before.seconds_between_tokens
    stats = now.stats
    cells = (
        f"{now.seconds / 60:.2f}",
        f"{now.num_requests:,}",
        f"{tokens / (now.seconds - before.seconds):.0f}",
        f"{now.resident_bytes / 2**20:.1f}",
        f"{1000 * _cpu_per_token((before, now)):.2f}",
        f"{1000 * between / tokens:.1f}",
        f"{stats['num_used_gpu_blocks']}",
        f"{stats['num_requests_swapped']}",
        f"{stats['num_preemptions']:,}",
        f"{stats['num_blocks_swapped_in']:,}",
    )
    return f"| {' | '.join(cells)} |"


def start_server(folder: Path, log: Path) -> ServerProcess:
    """Start one with 24 blocks, which two or three of its requests fill."""
    return ServerProcess(
        log, str(folder), "--device", "cpu", "--max-model-len", "256", "--block-size", "16",
        "--num-gpu-blocks-override", "24", "--swap-space", "0.02", "--preemption-mode", "swap",
        "--max-num-seqs", "16", "--max-num-batched-tokens", "128", "--max-queue", "16",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", default="tiny", help="tiny, smollm2 or a folder (default: tiny)")
    arguments = parser.parse_args()
    builders = {"tiny": lambda: build_tiny("qwen3-tied"), "smollm2": build_smollm2}
    build = builders.get(arguments.model, lambda: Path(arguments.model))
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(build(), Path(folder) / "server.log")
        try:
            server.wait_ready()
            report = asyncio.run(soak(server, seconds=60 * arguments.minutes))
        finally:
            server.stop()
    print("\n" + ", ".join(f"{count:,} {what}" for what, count in report.tally.outcomes.items()))
    faults = report.faults()
    print("\n".join(faults) or "no block used, memory and cost unchanged, no 5xx")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
