"""How long a start takes: measured, scheduled → Ready, and remembered.

What is remembered lives in the deployment's status, so that an operator that restarts knows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

KEPT = 5
_TRUSTED = 3
_LONGEST_SECONDS = 24 * 3600.0


def remember_cold_start(known: Sequence[float], seconds: float) -> tuple[float, ...]:
    """Add a measured start, newest last; what cannot be one is left out."""
    if not math.isfinite(seconds) or not 0 < seconds <= _LONGEST_SECONDS:
        return tuple(known)
    return (*known, seconds)[-KEPT:]


def expected_cold_start(known: Sequence[float], planned_seconds: float) -> float:
    """Return the longest of the last three starts; the plan's estimate before the first.

    The longest, for a start that takes longer than expected costs more than a replica too early.
    """
    return max(known[-_TRUSTED:], default=planned_seconds)
