"""The signal: what is seen of a deployment's blocks, and the replicas that follow from it.

Called for every deployment after every scrape. Pure: the clock is the observation's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qwen_operator.autoscaling.demand import Demand, Load, growth, measure_demand
from qwen_operator.autoscaling.history import (
    NEEDS_SECONDS,
    REGRET_KEPT_SECONDS,
    History,
    observe,
    remember_level,
    remember_need,
)
from qwen_operator.autoscaling.samples import Observation
from qwen_operator.autoscaling.tuning import DEFAULT_TUNING, Tuning

NET_RATE_SECONDS = 60.0  # the window of net_blocks_per_second
_DELAY_SECONDS = 15.0  # scrape and HPA, before a cold start begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A deployment's blocks and what they ask for.

    Attributes:
        total, free, used, cached: sums over the pods with fresh figures; cached blocks are free.
        worst_free: of the pod with the fewest; None without pods.
        free_ratio: free ÷ total, loading pods counted as free with their planned blocks; None
            without either.
        waiting, swapped: requests.
        net_blocks_per_second: taken less given back, over NET_RATE_SECONDS.
        seconds_to_exhaustion: free blocks, loading pods included, ÷ net rate; None if it does not
            fall.
        demand: in replicas' worth.
        needed: replicas before rounding.
        replicas: wanted; None if nothing is known, so that whoever scales holds.
        reason: a CamelCase word for why.
    """

    total: int
    free: int
    used: int
    cached: int
    worst_free: int | None
    free_ratio: float | None
    waiting: int
    swapped: int
    net_blocks_per_second: float
    seconds_to_exhaustion: float | None
    demand: Demand
    needed: float
    replicas: int | None
    reason: str


def decide(
    history: History, seen: Observation, tuning: Tuning = DEFAULT_TUNING
) -> tuple[History, Signal]:
    """Take in an observation; return the history with it, and what it asks for."""
    history = observe(history, seen)
    horizon = seen.cold_start_seconds + _DELAY_SECONDS
    demand = measure_demand(history, seen, horizon, tuning)
    full = demand.replicas(Load(tuning.block_fill, tuning.slot_fill))
    level = tuning.with_headroom(full, horizon)
    history = remember_level(history, level)
    needed = _needed_later(history, horizon, tuning)
    history = remember_need(history, min(frame.level for frame in history.frames[-2:]))
    replicas, reason = _size(history, seen, needed, tuning)
    return history, _signal(history, seen, demand, (needed, replicas, reason))


def look_back_seconds(history: History, tuning: Tuning) -> float:
    """Return how long a scale-in looks back: longer once one had to be taken back."""
    regretted = history.regretted_at
    if regretted is None or history.now.at - regretted >= REGRET_KEPT_SECONDS:
        return tuning.look_back_seconds
    return min(tuning.look_back_seconds * tuning.regret_factor, NEEDS_SECONDS)


def _needed_later(history: History, horizon: float, tuning: Tuning) -> float:
    """Return the replicas needed when one ordered now is ready: it goes on as it did so long."""
    window = min(max(horizon, 60.0), 600.0)
    level = history.now.level
    more = growth(history, window) * horizon / window - tuning.growth_ignored * level
    return level + min(max(0.0, more), tuning.growth_cap * level)


def _size(
    history: History, seen: Observation, needed: float, tuning: Tuning
) -> tuple[int | None, str]:
    if not seen.pods:
        return None, "NothingKnown"
    wanted = max(1, math.ceil(needed))
    if needed > seen.replicas * (1 + tuning.band):
        return wanted, "BlocksNeeded"
    if wanted >= seen.replicas:
        return seen.replicas, "Enough"
    if held := _why_hold(history, seen, tuning):
        return seen.replicas, held
    peak = history.peak(look_back_seconds(history, tuning))
    fits = max(1, wanted, math.ceil(peak + tuning.scale_in_spare(peak)))
    return (fits, "BlocksSpare") if fits < seen.replicas else (seen.replicas, "Enough")


def _why_hold(history: History, seen: Observation, tuning: Tuning) -> str:
    """Return why a deployment with too many replicas keeps them for now."""
    if seen.silent:
        return "PodsSilent"
    if seen.loading:
        return "PodsLoading"
    if seen.at - (history.since or 0.0) < look_back_seconds(history, tuning):
        return "LookingBack"
    settle = seen.cold_start_seconds + tuning.settle_seconds
    if history.grew_at is not None and seen.at - history.grew_at < settle:
        return "JustScaledOut"
    return ""


def _signal(
    history: History, seen: Observation, demand: Demand, size: tuple[float, int | None, str]
) -> Signal:
    pods, coming = seen.pods, seen.loading * seen.capacity.blocks
    total, free = sum(pod.total for pod in pods), sum(pod.free for pod in pods)
    rate = _net_rate(history)
    return Signal(
        total=total,
        free=free,
        used=total - free,
        cached=sum(pod.cached for pod in pods),
        worst_free=min((pod.free for pod in pods), default=None),
        free_ratio=(free + coming) / (total + coming) if total + coming else None,
        waiting=sum(pod.waiting for pod in pods),
        swapped=sum(pod.swapped for pod in pods),
        net_blocks_per_second=rate,
        seconds_to_exhaustion=(free + coming) / rate if rate > 0 else None,
        demand=demand,
        needed=size[0],
        replicas=size[1],
        reason=size[2],
    )


def _net_rate(history: History) -> float:
    past = history.before(NET_RATE_SECONDS)
    seconds = history.now.at - past.at
    taken = history.now.net_blocks_ever - past.net_blocks_ever
    return taken / seconds if seconds > 0 else 0.0
