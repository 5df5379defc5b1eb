"""The horizontal pod autoscaler, as Kubernetes documents it and its controller does it.

Facts from "Horizontal Pod Autoscaling" (kubernetes.io, algorithm details) and
kubernetes/kubernetes pkg/controller/podautoscaler (replica_calculator.go, horizontal.go): 10 %
tolerance, pods without a figure counted as 0 on the way up and as the target on the way down, the
largest recommendation of the scale-down window, and 4 pods or 100 % per 15 s on the way up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SYNC_SECONDS = 15
TOLERANCE = 0.1


@dataclass(slots=True)
class Behavior:
    """The part of `spec.behavior` that differs here, and the bounds."""

    least: int = 1
    most: int = 24
    scale_down_window: int = 300
    _said: deque[tuple[int, int]] = field(default_factory=deque)
    _ups: deque[tuple[int, int]] = field(default_factory=deque)

    def apply(self, now: int, current: int, desired: int) -> int:
        """Turn a recommendation into the replicas that are written."""
        if not self._said:  # a controller that starts takes what it finds for a recommendation
            self._said.append((now, current))
        self._said.append((now, desired))
        while self._said[0][0] < now - self.scale_down_window:
            self._said.popleft()
        stable = max(desired, min(current, max(count for _, count in self._said)))
        allowed = min(stable, self._up_limit(now, current))
        wanted = min(max(allowed, self.least), self.most)
        if wanted > current:
            self._ups.append((now, wanted - current))
        return wanted

    def _up_limit(self, now: int, current: int) -> int:
        while self._ups and self._ups[0][0] <= now - 15:
            self._ups.popleft()
        before = current - sum(added for _, added in self._ups)
        return max(before + 4, 2 * before)


def per_pod(values: Sequence[float], missing: int, target: float, current: int) -> int:
    """Return the replicas for a Pods or Resource metric.

    Args:
        values: one figure for each pod that has one.
        missing: pods that have none yet.
    """
    if not values:
        return current
    ratio = sum(values) / len(values) / target
    if not missing:
        return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * len(values))
    filled = [*values, *([target if ratio < 1 else 0.0] * missing)]
    again = sum(filled) / len(filled) / target
    turned = (ratio < 1 < again) or (again < 1 < ratio)
    if abs(1 - again) <= TOLERANCE or turned:
        return current
    wanted = math.ceil(again * len(filled))
    if (again < 1 and wanted > current) or (again > 1 and wanted < current):
        return current
    return wanted


def external(value: float, target: float, current: int) -> int:
    """Return the replicas for an External metric with an AverageValue."""
    if abs(1 - value / (target * current)) <= TOLERANCE:
        return current
    return math.ceil(value / target)
