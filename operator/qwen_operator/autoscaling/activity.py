"""When a deployment was last asked for anything, from its engines' figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qwen_operator.autoscaling.samples import Observation, PodSample

_Counts = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Activity:
    """What was seen so far.

    Attributes:
        busy_at: seconds of the observations' clock.
        counts: by pod, what only grows with requests: blocks taken, requests finished.
    """

    busy_at: float
    counts: Mapping[str, _Counts] = field(default_factory=dict)

    def idle_seconds(self, now: float) -> float:
        """Return for how long nothing was asked."""
        return now - self.busy_at


def observe_activity(before: Activity | None, seen: Observation, *, waiting: bool) -> Activity:
    """Take in an observation; what is not known counts as asked.

    Args:
        waiting: requests are held elsewhere for a pod to come.
    """
    counts = {pod.pod: _counts(pod) for pod in seen.pods}
    is_busy = (
        before is None
        or waiting
        or seen.silent > 0
        or seen.loading > 0
        or not seen.pods
        or any(pod.present > 0 for pod in seen.pods)
        or any(before.counts.get(pod) != count for pod, count in counts.items())
    )
    return Activity(seen.at if is_busy or before is None else before.busy_at, counts)


def _counts(pod: PodSample) -> _Counts:
    return pod.allocated, pod.finished
