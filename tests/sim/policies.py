"""The rivals' policies: what people scale engines on today, with their documented defaults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.sim.fleet import BLOCKS, SLOTS, Fleet, Replica
from tests.sim.hpa import SYNC_SECONDS, Behavior, external, per_pod

SCRAPE_SECONDS = 15  # Prometheus; the newest scrape is what its adapter answers


class Policy(Protocol):
    """Sets a fleet's size; called every second, before it is lived."""

    by_blocks: bool

    def act(self, now: int, fleet: Fleet) -> int | None:
        """Return the replicas wanted, or None to leave them."""


class PodsHpa:
    """An HPA on a Pods metric: the mean of a gauge against a target."""

    by_blocks = False

    def __init__(self, gauge: Callable[[Replica], float], target: float, window: int = 300) -> None:
        self._gauge, self._target = gauge, target
        self._behavior = Behavior(scale_down_window=window)

    def act(self, now: int, fleet: Fleet) -> int | None:
        if now % SYNC_SECONDS:
            return None
        values = [self._gauge(replica) for replica in fleet.ready(now)]
        missing, current = len(fleet.loading(now)), fleet.wanted
        desired = per_pod(values, missing, self._target, current)
        return self._behavior.apply(now, current, desired)


class GpuHpa(PodsHpa):
    """An HPA on GPU use (DCGM_FI_DEV_GPU_UTIL): the share of time in which any kernel ran."""

    def __init__(self, target: float = 0.8) -> None:
        super().__init__(self._use, target)
        self._before: dict[int, tuple[float, float]] = {}

    def _use(self, replica: Replica) -> float:
        was = self._before.get(replica.name, 0.0)
        self._before[replica.name] = replica.busy_seconds
        return min(1.0, (replica.busy_seconds - was) / SYNC_SECONDS)


class KedaWaiting:
    """KEDA on waiting requests: one External metric, their sum, 5 for each replica."""

    by_blocks = False

    def __init__(self, target: float = 5.0) -> None:
        self._target, self._behavior = target, Behavior()

    def act(self, now: int, fleet: Fleet) -> int | None:
        if now % SYNC_SECONDS:
            return None
        waiting = sum(len(replica.queue) for replica in fleet.ready(now))
        current = fleet.wanted
        return self._behavior.apply(now, current, external(waiting, self._target, current))


class Wva:
    """An imitation of llm-d's workload-variant-autoscaler in its saturation mode.

    After its docs/saturation-analyzer.md: spare KV below 0.8 and spare queue below 5, averaged over
    the replicas that are not saturated, from the largest values of the last minute; one replica
    more when less than 0.1 or 3 is spare and none is pending; one less when the load of all, spread
    over one replica fewer, would leave that much. An HPA reads its figure as an External metric.
    """

    by_blocks = False
    KV, QUEUE, SPARE_KV, SPARE_QUEUE, EVERY = 0.8, 5, 0.1, 3, 30

    def __init__(self) -> None:
        self._behavior, self._wanted = Behavior(), 0
        self._seen: dict[int, deque[tuple[float, int]]] = {}

    def act(self, now: int, fleet: Fleet) -> int | None:
        if now % SYNC_SECONDS:
            return None
        rows = [self._peak(replica) for replica in fleet.ready(now)]
        current = fleet.wanted
        if not now % self.EVERY:
            self._wanted = self._analyse(rows, len(fleet.loading(now)), current)
        return self._behavior.apply(now, current, external(self._wanted, 1.0, current))

    def _peak(self, replica: Replica) -> tuple[float, int]:
        seen = self._seen.setdefault(replica.name, deque(maxlen=60 // SCRAPE_SECONDS))
        seen.append((kv_usage(replica), len(replica.queue)))
        return max(kv for kv, _ in seen), max(queue for _, queue in seen)

    def _analyse(self, rows: Sequence[tuple[float, int]], pending: int, current: int) -> int:
        calm = [(kv, queue) for kv, queue in rows if kv < self.KV and queue < self.QUEUE]
        n = len(calm)
        if not n:
            return current if pending else current + 1
        kv, queue = sum(kv for kv, _ in calm), sum(queue for _, queue in calm)
        if self.KV - kv / n < self.SPARE_KV or self.QUEUE - queue / n < self.SPARE_QUEUE:
            return current if pending else current + 1
        if n < 2 or pending:
            return current
        fits = self.KV - kv / (n - 1) >= self.SPARE_KV
        return current - 1 if fits and self.QUEUE - queue / (n - 1) >= self.SPARE_QUEUE else current


def kv_usage(replica: Replica) -> float:
    """Return `vllm:kv_cache_usage_perc`."""
    return replica.used / BLOCKS


def slots_used(replica: Replica) -> float:
    """Return running requests as a share of the sequence slots."""
    return len(replica.running) / SLOTS
