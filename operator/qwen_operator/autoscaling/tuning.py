"""The controller's constants. Where each comes from: docs/autoscaling.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

_TARGET_AT = 3.0  # replicas; the free ratio is meant for a deployment of so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a user may set (the target), and what was found by simulation (the rest).

    Attributes:
        free_ratio: of the blocks of three replicas, free on average, for a cold start up to 30 s. A
            smaller deployment keeps more free, a larger one less: see `with_headroom`.
        full: of a pool's blocks, used before head-room is added; more if less is to be free.
        slot_fill: the same of a replica's sequence slots. Above 1, for a request without a slot
            only waits, while one without a block costs another its place; with head-room it is 0.8
            of three replicas' slots, and all of twenty's.
        margin_per_doubling: kept free besides, for each doubling of the cold start.
        worst_full, gap_weight: where pods keep differing, blocks are filled to the first less the
            second times the gap between the fullest and the mean, before head-room.
        arrival_seconds, cost_seconds: windows of the arrival rate and of a request's mean cost.
        arrival_doubt: standard errors taken off the arrival rate, since chance alone is no growth.
        arrival_cap: arrivals never count as more than this times what is held.
        queue_cap: nor waiting requests, where an engine does not count finished ones.
        growth_ignored: growth by this share of the level is noise, and head-room bears it.
        band: scale-out only where more than this share of what there is is missing.
        spare_factor, most_spare: what stays after a scale-in beyond what was needed: the first
            times its square root, but no larger share of it than the second.
        look_back_seconds: scale-in looks at the largest need of so long.
        regret_factor: and so much longer for each scale-in that had to be taken back.
        settle_seconds: no scale-in so soon after a scale-out, added to the cold start.
    """

    free_ratio: float = 0.37
    full: float = 0.9
    slot_fill: float = 1.14
    margin_per_doubling: float = 0.025
    worst_full: float = 1.03
    gap_weight: float = 1.0
    arrival_seconds: float = 20.0
    cost_seconds: float = 60.0
    arrival_doubt: float = 1.0
    arrival_cap: float = 2.0
    queue_cap: float = 0.25
    growth_ignored: float = 0.4
    band: float = 0.1
    spare_factor: float = 0.9
    most_spare: float = 0.5
    look_back_seconds: float = 600.0
    regret_factor: float = 3.0
    settle_seconds: float = 120.0

    @property
    def block_fill(self) -> float:
        """The share of a pool that is used before head-room is added."""
        return max(self.full, 1.0 - self.free_ratio)

    def with_headroom(self, replicas: float) -> float:
        """Return these full replicas' worth with replicas to spare, by their square root.

        Chance varies a sum of n by √n: staffing by square root, as in Halfin and Whitt, "Heavy-
        traffic limits for queues with many exponential servers" (1981). The factor is such that the
        free ratio holds at three replicas.
        """
        full = _TARGET_AT * (1.0 - self.free_ratio) / self.block_fill
        factor = (_TARGET_AT - full) / math.sqrt(full)
        return replicas + factor * math.sqrt(replicas)

    def scale_in_spare(self, needed: float) -> float:
        """Return the replicas that stay after a scale-in beyond those needed."""
        return min(self.spare_factor * math.sqrt(needed), self.most_spare * needed)

    def margin(self, horizon_seconds: float) -> float:
        """Return the share kept free because a replica takes so long to come."""
        return self.margin_per_doubling * math.log2(max(horizon_seconds, 45.0) / 45.0)


DEFAULT_TUNING = Tuning()
