"""The controller's constants. Where each comes from: docs/autoscaling.md."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a user may set (the target), and what was found by simulation (the rest).

    Attributes:
        free_ratio: of a pool's blocks, free on average, for a cold start up to 30 s.
        slot_fill: of a replica's sequence slots, used on average. A request that finds no slot only
            waits; one that finds no block costs another its place.
        margin_per_doubling: kept free besides, for each doubling of the cold start.
        worst_full, gap_weight: the fullest pod stays below `worst_full`, if pods keep differing
            as they do: that times the gap between the fullest and the mean is kept free.
        full: a pool that is to be this full when ordered replicas come is too full.
        arrival_seconds, cost_seconds: windows of the arrival rate and of a request's mean cost.
        arrival_doubt: standard errors taken off the arrival rate, since chance alone is no growth.
        arrival_cap: arrivals never count as more than this times what is held.
        queue_cap: nor waiting requests, where an engine does not count finished ones.
        growth_doubt: standard errors taken off the slope.
        growth_cap: growth until a replica is ready counts at most as this times the level.
        band: scale-out only where more than this share of what there is is missing.
        slack: scale-in only to where what was needed fills this much of what stays.
        rare: the share of a lengthened look-back that may have needed more: a single peak is not
            waited for.
        look_back_seconds: scale-in looks at the largest need of so long.
        regret_factor: and so much longer for each scale-in that had to be taken back.
        settle_seconds: no scale-in so soon after a scale-out, added to the cold start.
    """

    free_ratio: float = 0.37
    slot_fill: float = 0.8
    margin_per_doubling: float = 0.025
    worst_full: float = 0.97
    gap_weight: float = 1.2
    full: float = 0.95
    arrival_seconds: float = 30.0
    cost_seconds: float = 300.0
    arrival_doubt: float = 2.0
    arrival_cap: float = 4.0
    queue_cap: float = 0.25
    growth_doubt: float = 3.0
    growth_cap: float = 1.2
    slack: float = 0.85
    band: float = 0.05
    rare: float = 0.05
    look_back_seconds: float = 900.0
    regret_factor: float = 3.0
    settle_seconds: float = 120.0

    def margin(self, horizon_seconds: float) -> float:
        """Return the share kept free because a replica takes so long to come."""
        return self.margin_per_doubling * math.log2(max(horizon_seconds, 45.0) / 45.0)


DEFAULT_TUNING = Tuning()
