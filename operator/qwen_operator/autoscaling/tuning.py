"""The controller's constants. Where each comes from: docs/autoscaling.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

_TARGET_AT = 5.0  # replicas; the free ratio is meant for a deployment of so many
_SHORT_SECONDS = 45.0  # head-room is meant for a cold start of 30 s and the delay before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a user may set (the target), and what was found by simulation (the rest).

    Attributes:
        free_ratio: of the blocks of five replicas, free on average, for a cold start up to 30 s. A
            smaller deployment keeps more free, a larger one less: see `with_headroom`.
        full: of a replica's blocks; what it holds before head-room is added.
        slot_fill: the same of its sequence slots. Above `full`, for a request without a slot only
            waits, while one without a block costs another its place.
        headroom_times: head-room is at most so many times what is asked for.
        headroom_per_doubling: replicas of head-room more, for each doubling of the cold start.
        arrival_seconds, cost_seconds: windows of the arrival rate and of a request's mean cost.
        arrival_doubt: standard errors taken off the arrival rate, since chance alone is no growth.
        arrival_cap: arrivals never count as more than this times what is held.
        stuck_share: a pod where more wait than this share of those that run takes nothing new.
        queue_cap: what waits never counts as more than this times what is held, where an engine
            does not count finished requests.
        growth_ignored: growth by this share of the level is noise, and head-room bears it.
        growth_cap: growth never counts as more than this share of the level.
        band: scale-out only where more than this share of what there is is missing.
        spare_factor, most_spare: what stays after a scale-in beyond what was needed: the first
            times its square root, but no larger share of it than the second.
        look_back_seconds: scale-in looks at the largest need of so long.
        regret_factor: and of so many times that once a scale-in had to be taken back.
        settle_seconds: no scale-in so soon after a scale-out, added to the cold start.
    """

    free_ratio: float = 0.37
    full: float = 0.94
    slot_fill: float = 1.05
    headroom_times: float = 3.0
    headroom_per_doubling: float = 0.36
    arrival_seconds: float = 10.0
    cost_seconds: float = 90.0
    arrival_doubt: float = 1.0
    arrival_cap: float = 2.0
    stuck_share: float = 0.1
    queue_cap: float = 0.25
    growth_ignored: float = 0.6
    growth_cap: float = 0.3
    band: float = 0.07
    spare_factor: float = 0.7
    most_spare: float = 0.3
    look_back_seconds: float = 600.0
    regret_factor: float = 6.0
    settle_seconds: float = 120.0

    @property
    def block_fill(self) -> float:
        """The share of a replica's blocks that is used before head-room is added."""
        return max(self.full, 1.0 - self.free_ratio)

    def with_headroom(self, replicas: float, horizon_seconds: float) -> float:
        """Return these full replicas' worth with some to spare: a number of them, not a share.

        What comes unforeseen and faster than a replica starts hits small deployments most, and
        those are the cheapest to keep ready. The number is such that the free ratio holds at five.
        """
        doublings = math.log2(max(horizon_seconds, _SHORT_SECONDS) / _SHORT_SECONDS)
        least = _TARGET_AT - _TARGET_AT * (1.0 - self.free_ratio) / self.block_fill
        headroom = least + self.headroom_per_doubling * doublings
        return replicas + min(headroom, self.headroom_times * replicas)

    def scale_in_spare(self, needed: float) -> float:
        """Return the replicas that stay after a scale-in beyond those needed."""
        return min(self.spare_factor * math.sqrt(needed), self.most_spare * needed)


DEFAULT_TUNING = Tuning()
