"""Our policy: the operator's own decision, fed and obeyed as on a cluster."""

from __future__ import annotations

from qwen_operator.autoscaling.history import History
from qwen_operator.autoscaling.hpa_value import hpa_value
from qwen_operator.autoscaling.samples import Capacity, Observation, PodSample
from qwen_operator.autoscaling.signal import decide
from qwen_operator.autoscaling.tuning import DEFAULT_TUNING, Tuning
from tests.sim.fleet import BLOCKS, SLOTS, Fleet, Replica
from tests.sim.hpa import SYNC_SECONDS, Behavior, external

_SCRAPE_SECONDS = 5


class Ours:
    """Scrapes every 5 s; an HPA reads the wanted replicas every 15 s as an External metric."""

    by_blocks = True

    def __init__(self, cold_start: int, tuning: Tuning = DEFAULT_TUNING) -> None:
        self._cold_start, self._tuning = cold_start, tuning
        self._history, self._wanted = History(), 0
        self._behavior = Behavior(scale_down_window=0)

    def act(self, now: int, fleet: Fleet) -> int | None:
        if now % _SCRAPE_SECONDS:
            return None
        self._history, signal = decide(self._history, self._look(now, fleet), self._tuning)
        if now % SYNC_SECONDS or signal.replicas is None:
            return None
        current = fleet.wanted
        value = hpa_value(signal.replicas, current)
        return self._behavior.apply(now, current, external(value, 1.0, current))

    def _look(self, now: int, fleet: Fleet) -> Observation:
        return Observation(
            at=now,
            pods=tuple(_sample(replica) for replica in fleet.ready(now)),
            silent=0,
            loading=len(fleet.loading(now)),
            replicas=fleet.wanted,
            capacity=Capacity(blocks=BLOCKS, sequences=SLOTS),
            cold_start_seconds=self._cold_start,
        )


def _sample(replica: Replica) -> PodSample:
    used = min(BLOCKS, int(replica.used))
    return PodSample(
        pod=str(replica.name),
        total=BLOCKS,
        free=BLOCKS - used,
        used=used,
        cached=0,
        running=len(replica.running),
        waiting=len(replica.queue),
        swapped=0,
        allocated=int(replica.blocks_allocated),
        freed=int(replica.blocks_allocated) - used,
        finished=replica.finished,
    )
