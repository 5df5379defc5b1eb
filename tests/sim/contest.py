"""The contest: every policy on every load, and the sums that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.sim.fleet import Fleet
from tests.sim.loads import Load
from tests.sim.oracle import best_oracle, needs
from tests.sim.ours import Ours
from tests.sim.policies import GpuHpa, KedaWaiting, PodsHpa, Policy, Wva, kv_usage, slots_used
from tests.sim.runner import Outcome, run

COLD_STARTS = (30, 120, 600)
KV_TARGETS = (0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
TUNED_WINDOW = 600
# Of KV_TARGETS the one with the fewest exhausted seconds within 1.5 × the oracle's hours, on the
# tuning seeds: `python -m tests.sim --tuning --tune-rival`.
TUNED_TARGET: Mapping[int, float] = {30: 0.45, 120: 0.45, 600: 0.4}

OURS, TUNED, ORACLE = "free blocks (ours)", "HPA kv_cache_usage, tuned", "oracle"
Maker = Callable[[int], Policy]
DEFAULTS: Mapping[str, Maker] = {
    "HPA GPU use 80 %": lambda _: GpuHpa(),
    "HPA running requests, 50 % of slots": lambda _: PodsHpa(slots_used, 0.5),
    "KEDA waiting requests, 5 each": lambda _: KedaWaiting(),
    "HPA kv_cache_usage 0.8": lambda _: PodsHpa(kv_usage, 0.8),
    "HPA kv_cache_usage 0.6": lambda _: PodsHpa(kv_usage, 0.6),
    "WVA (imitation)": lambda _: Wva(),
}
POLICIES: Mapping[str, Maker] = {
    **DEFAULTS,
    TUNED: lambda cold: PodsHpa(kv_usage, TUNED_TARGET[cold], TUNED_WINDOW),
    OURS: Ours,
}


def kv_frontier() -> dict[str, Maker]:
    """Return the kv_cache_usage HPA at every target, with the long scale-in window."""

    def make(target: float) -> Maker:
        return lambda _: PodsHpa(kv_usage, target, TUNED_WINDOW)

    return {f"HPA kv_cache_usage {target:g}, 600 s": make(target) for target in KV_TARGETS}


@dataclass(frozen=True)
class Row:
    """What a policy did over a set of loads: sums over the loads, means over the seeds."""

    policy: str
    cold_start: int
    outcomes: tuple[Outcome, ...]
    seeds: int

    @property
    def exhausted_seconds(self) -> float:
        return sum(o.exhausted_seconds for o in self.outcomes) / self.seeds

    @property
    def late_share(self) -> float:
        return sum(o.late for o in self.outcomes) / sum(o.requests for o in self.outcomes)

    @property
    def replica_hours(self) -> float:
        return sum(o.replica_hours for o in self.outcomes) / self.seeds

    @property
    def direction_changes(self) -> float:
        return sum(o.direction_changes for o in self.outcomes) / self.seeds

    @property
    def changes_per_peak(self) -> float:
        return sum(o.direction_changes for o in self.outcomes) / sum(o.peaks for o in self.outcomes)

    @property
    def most_changes(self) -> int:
        return max(o.direction_changes for o in self.outcomes)

    def exhausted_on(self, load: str) -> float:
        """Return the mean over the seeds of one load."""
        return sum(o.exhausted_seconds for o in self.outcomes if o.load == load) / self.seeds


def contest(
    loads: Sequence[Load],
    makers: Mapping[str, Maker],
    *,
    cold_starts: Sequence[int] = COLD_STARTS,
    router: str = "two",
) -> Iterator[Row]:
    """Run every policy, and the oracle, on every load; one row each as it is done."""
    needed = [needs(load) for load in loads]
    seeds = max(1, len(loads) // len({load.name for load in loads}))
    for cold in cold_starts:
        oracles = [best_oracle(load, need, cold) for load, need in zip(loads, needed, strict=True)]
        for name, maker in [(ORACLE, None), *makers.items()]:
            outcomes = [
                run(
                    load,
                    oracle if maker is None else maker(cold),
                    Fleet(replicas=oracle.first, cold_start=cold, router=router),
                )
                for load, oracle in zip(loads, oracles, strict=True)
            ]
            yield Row(name, cold, tuple(outcomes), seeds)
