"""One run: a load, a fleet, a policy, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tests.sim.fleet import Fleet, Tally
from tests.sim.loads import Load
from tests.sim.policies import Policy


@dataclass(frozen=True)
class Outcome:
    """What is reported of a run."""

    load: str
    exhausted_seconds: float
    late: int
    requests: int
    replica_hours: float
    direction_changes: int
    peaks: int


def run(load: Load, policy: Policy, fleet: Fleet) -> Outcome:
    """Replay a load under a policy."""
    sizes = [fleet.wanted]
    for now, arrivals in enumerate(load.seconds):
        wanted = policy.act(now, fleet)
        if wanted is not None and wanted != fleet.wanted:
            fleet.scale(wanted, now, by_blocks=policy.by_blocks)
            sizes.append(wanted)
        fleet.step(now, arrivals)
    fleet.close(len(load.seconds))
    return _outcome(load, fleet.tally, sizes)


def _outcome(load: Load, tally: Tally, sizes: list[int]) -> Outcome:
    return Outcome(
        load=load.name,
        exhausted_seconds=tally.exhausted_seconds,
        late=tally.late,
        requests=tally.arrived,
        replica_hours=tally.replica_seconds / 3600,
        direction_changes=count_turns(sizes),
        peaks=load.peaks,
    )


def count_turns(sizes: list[int]) -> int:
    """Count how often a series of sizes turns from growing to shrinking or back."""
    steps = [after - before for before, after in pairwise(sizes)]
    signs = [step > 0 for step in steps if step]
    return sum(before != after for before, after in pairwise(signs))
