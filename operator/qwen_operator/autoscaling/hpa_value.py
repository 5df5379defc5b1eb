"""The figure that makes an HPA arrive at a number of replicas."""

from __future__ import annotations

import math

TOLERANCE = 0.1  # of a HorizontalPodAutoscaler, unless its behavior says otherwise


def hpa_value(wanted: int, replicas: int) -> int:
    """Return what an External metric with AverageValue 1 must say for `wanted` replicas.

    An HPA that finds a figure within a tenth of its present replicas changes nothing, which above
    ten hides a step of one. A scale-out is never hidden: it becomes the smallest step that is
    seen. A scale-in may be, and comes with the next.
    """
    if replicas < wanted <= replicas * (1 + TOLERANCE):
        return math.floor(replicas * (1 + TOLERANCE)) + 1
    return wanted
