"""The oracle: it knows the load to come, and what it will need.

What a load needs is measured, from above: on a fleet that is never short, then on ever smaller
ones, for engines that are fuller are slower and so hold more. A replica is ordered one cold start
before it is needed, and kept over a dip that is too short to end it and start it again.
"""

from __future__ import annotations

import math

from tests.sim.fleet import BLOCKS, SLOTS, Fleet
from tests.sim.loads import Load
from tests.sim.runner import run

_MEASURED_AT = (0.4, 0.6)  # fills, of blocks and slots
ORACLE_FILLS = (0.8, 0.75, 0.7, 0.65, 0.6, 0.55)
_PLENTY = 24
_AHEAD_SECONDS = 30


def needs(load: Load) -> list[float]:
    """Return the replicas' worth of blocks or slots that each second holds."""
    wants = [_PLENTY] * len(load.seconds)
    found = _measure(load, wants)
    for fill in _MEASURED_AT:
        found = _measure(load, _sizes(found, fill, _AHEAD_SECONDS))
    return found


def _sizes(needed: list[float], fill: float, ahead: int) -> list[int]:
    wants = [max(1, math.ceil(need / fill)) for need in needed]
    return [max(wants[at : at + ahead]) for at in range(len(wants))]


def _measure(load: Load, wants: list[int]) -> list[float]:
    fleet = Fleet(replicas=wants[0], cold_start=0)
    found = []
    for now, arrivals in enumerate(load.seconds):
        fleet.scale(wants[now], now, by_blocks=True)
        fleet.step(now, arrivals)
        blocks = sum(replica.used for replica in fleet.replicas) / BLOCKS
        slots = sum(replica.load for replica in fleet.replicas) / SLOTS
        found.append(max(blocks, slots))
    return found


class Oracle:
    """Wants at every moment the most that will be needed until a replica ordered later is ready."""

    by_blocks = True

    def __init__(self, needed: list[float], cold_start: int, fill: float) -> None:
        self._wants = _sizes(needed, fill, cold_start + _AHEAD_SECONDS)

    @property
    def first(self) -> int:
        """The replicas that every policy starts with."""
        return self._wants[0]

    def act(self, now: int, fleet: Fleet) -> int | None:
        return self._wants[now]


def best_oracle(load: Load, needed: list[float], cold_start: int) -> Oracle:
    """Return the oracle with the least head-room under which no pool is exhausted."""
    for fill in ORACLE_FILLS[:-1]:
        oracle = Oracle(needed, cold_start, fill)
        if (
            run(load, oracle, Fleet(replicas=oracle.first, cold_start=cold_start)).exhausted_seconds
            <= 2
        ):
            return oracle
    return Oracle(needed, cold_start, ORACLE_FILLS[-1])
