"""What a deployment's load asks for, in replicas' worth of blocks and of sequence slots."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qwen_operator.autoscaling.history import History
from qwen_operator.autoscaling.samples import Capacity, Observation, PodSample
from qwen_operator.autoscaling.tuning import Tuning

_LEAST_HELD = 0.3  # replicas; caps are relative to what is held, and there must be a way from 0
_ENOUGH_FINISHED = 10  # requests, to know what one costs
_DRAIN_SECONDS = 60.0  # the shortest that a queue is spread over
_SMOOTHED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """Replicas' worth of blocks and of sequence slots; as a fill, shares of one replica."""

    blocks: float = 0.0
    slots: float = 0.0

    def over(self, fill: Load) -> float:
        """Return the replicas that are filled so far by this."""
        return max(self.blocks / fill.blocks, self.slots / fill.slots)

    def times(self, factor: float) -> Load:
        """Return so many times this."""
        return Load(factor * self.blocks, factor * self.slots)

    def plus(self, other: Load) -> Load:
        """Return the sum."""
        return Load(self.blocks + other.blocks, self.slots + other.slots)

    def at_most(self, times: float, other: Load) -> Load:
        """Return this, capped at so many times another."""
        return Load(
            min(self.blocks, times * max(other.blocks, _LEAST_HELD)),
            min(self.slots, times * max(other.slots, _LEAST_HELD)),
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for now.

    Attributes:
        held: by pods that take new requests at once.
        stuck: pods with a queue. It cannot move, so they are busy for a while, whatever is added.
        arriving: what the present arrivals will hold by Little's law, their rate × what a request
            holds × how long, known before it is held; and what waits, spread over a cold start.
        queued: what waits, where arrivals are not known.
    """

    held: Load
    stuck: int
    arriving: Load
    queued: Load

    def replicas(self, fill: Load) -> float:
        """Return the replicas that this fills so far."""
        present = self.held.over(fill) + self.stuck + self.queued.over(fill)
        return max(present, self.arriving.over(fill))


def measure_demand(history: History, seen: Observation, horizon: float, tuning: Tuning) -> Demand:
    """Return the demand of this moment; the horizon is when a replica ordered now is ready."""
    pods, capacity = seen.pods, seen.capacity
    arriving = _arriving(history, capacity, horizon, tuning)
    stuck = [p for p in pods if _is_stuck(p, tuning)]
    free = [pod for pod in pods if pod not in stuck]
    return Demand(
        held=_load(sum(p.used for p in free), sum(p.running for p in free), capacity),
        stuck=len(stuck),
        arriving=arriving or Load(),
        queued=Load() if arriving else _queued(history, capacity, tuning),
    )


def _is_stuck(pod: PodSample, tuning: Tuning) -> bool:
    """Say whether its queue waits for room; beside nothing that runs, it has but just come."""
    return pod.running > 0 and pod.waiting + pod.swapped > tuning.stuck_share * pod.running


def growth(history: History, seconds: float) -> float:
    """Return by how many replicas the level has risen within so long; 0 if it has not.

    Not a slope by least squares: that lags half a window behind, and its doubt is largest just when
    a rise begins.
    """
    end = history.now.at - seconds
    start = end - _SMOOTHED_SECONDS
    before = [frame.level for frame in history.frames if start <= frame.at <= end]
    return max(0.0, history.now.level - sum(before) / len(before)) if before else 0.0


def _load(blocks: float, sequences: float, capacity: Capacity) -> Load:
    return Load(blocks / capacity.blocks, sequences / capacity.sequences)


def _arriving(history: History, capacity: Capacity, horizon: float, tuning: Tuning) -> Load | None:
    now = history.now
    recent, past = history.before(tuning.arrival_seconds), history.before(tuning.cost_seconds)
    finished, seconds = now.finished_ever - past.finished_ever, now.at - recent.at
    if not now.is_counted or finished < _ENOUGH_FINISHED or seconds < tuning.arrival_seconds / 2:
        return None
    count = now.arrived_ever - recent.arrived_ever
    rate = max(0.0, count - tuning.arrival_doubt * math.sqrt(count)) / seconds
    each = _load(
        (now.block_seconds_ever - past.block_seconds_ever) / finished,
        (now.sequence_seconds_ever - past.sequence_seconds_ever) / finished,
        capacity,
    )
    held = _load(now.used, now.running, capacity)
    waiting = each.times(now.waiting / max(horizon, _DRAIN_SECONDS))
    return each.times(rate).at_most(tuning.arrival_cap, held).plus(waiting)


def _queued(history: History, capacity: Capacity, tuning: Tuning) -> Load:
    now = history.now
    blocks_each = now.used / now.running if now.running else 0.0
    held = _load(now.used, now.running, capacity)
    waiting = _load(now.waiting * blocks_each, now.waiting, capacity)
    return waiting.at_most(tuning.queue_cap, held)
