"""What it costs the operator to look at a great fleet: processor, memory, the age of its figures.

    python -m tests.bench.scrape_cost                        # 500 deployments of 4 pods, 60 s
    python -m tests.bench.scrape_cost --deployments 50 --seconds 20

The operator's own controller runs in this process, against a cluster in memory and engines that
answer on loopback addresses from a process of their own. Left out are kopf's watches and the
HTTP of calls to the API server. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.synchronize import Event

from qwen_operator.controller import Controller
from qwen_operator.settings import Settings
from tests.bench.fleet import MemoryFleet, serve_engines

_DECIDE_SECONDS = 5.0
_START_SECONDS = 300.0
_SCRAPES_EACH = 3.0  # decisions for each look for status, as the chart has it


@dataclass(frozen=True, slots=True)
class Cost:
    """A fleet's cost.

    Attributes:
        cores: processor time over wall time.
        memory_mib: the most that was resident, the cluster in memory included.
        oldest_seconds: of all figures that an HPA could have read, at any moment.
        decided: deployments with a figure at the end.
        answers: by engines, per second.
        status_writes: per second.
    """

    deployments: int
    pods: int
    seconds: float
    cores: float
    memory_mib: float
    oldest_seconds: float
    decided: int
    answers: float
    status_writes: float


async def measure(fleet: MemoryFleet, *, seconds: float, every: float = _DECIDE_SECONDS) -> Cost:
    """Run a controller over the fleet, and measure it for so long once all are decided on.

    Args:
        every: seconds between decisions.
    """
    settings = Settings(
        engine_image="engine:1", namespaces=(), health_port=0, log_level="info",
        resync_seconds=120, scrape_seconds=_SCRAPES_EACH * every, autoscaling_seconds=every,
    )  # fmt: skip
    controller = Controller(fleet, settings)
    controller.start()
    try:
        async with asyncio.timeout(_START_SECONDS):
            while len(controller._scaler.figures()) < fleet.deployments:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await asyncio.sleep(2 * every)  # beyond what only a start costs
        before = _moment(fleet)
        oldest = await _watch(controller, seconds)
        after = _moment(fleet)
    finally:
        await controller.stop()
    wall, used, answers, writes = (b - a for a, b in zip(before, after, strict=True))
    return Cost(
        deployments=fleet.deployments,
        pods=fleet.pods,
        seconds=round(wall, 1),
        cores=round(used / wall, 3),
        memory_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        oldest_seconds=round(oldest, 1),
        decided=len(controller._scaler.figures()),
        answers=round(answers / wall, 1),
        status_writes=round(writes / wall, 1),
    )


def _moment(fleet: MemoryFleet) -> tuple[float, float, int, int]:
    return time.monotonic(), time.process_time(), fleet.answers, fleet.status_writes


async def _watch(controller: Controller, seconds: float) -> float:
    """Return the age of the oldest figure that was there at any moment."""
    oldest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.5)
        now = datetime.now(UTC)
        for figure in controller._scaler.figures():
            oldest = max(oldest, (now - datetime.fromisoformat(figure.at)).total_seconds())
    return oldest


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scrape_cost", description=__doc__)
    parser.add_argument("--deployments", type=int, default=500)
    parser.add_argument("--pods", type=int, default=4, help="of each deployment")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(argv)
    print(json.dumps(asdict(run(args.deployments, args.pods, args.seconds)), indent=2))
    return 0


def run(deployments: int, pods: int, seconds: float, every: float = _DECIDE_SECONDS) -> Cost:
    """Measure a fleet of so many deployments with so many pods each, in this process."""
    context = multiprocessing.get_context("spawn")
    is_up: Event = context.Event()
    count = context.Value("L", 0)
    fleet = MemoryFleet(deployments, pods, count)
    engines = context.Process(
        target=serve_engines, args=(fleet.addresses, is_up, count), daemon=True
    )
    engines.start()
    try:
        if not is_up.wait(60):
            raise RuntimeError("the engines did not start")
        return asyncio.run(measure(fleet, seconds=seconds, every=every))
    finally:
        engines.terminate()
        engines.join()


if __name__ == "__main__":
    sys.exit(main())
