"""How long the stages of a start took, counted from the process's own beginning.

Made by `launch`, marked by it and by `worker`; told in the log and by /stats. Knows no torch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/self/stat")
_START_FIELD = 19  # starttime, counted behind the name in brackets (man proc_pid_stat)


class StartTimes:
    """The stages so far, in order."""

    def __init__(self) -> None:
        """Begin with what the process did before."""
        self._stages: dict[str, float] = {}
        self._last = time.monotonic()
        age = process_age()
        if age is not None:
            self._stages["before the launch"] = age

    def mark(self, stage: str) -> None:
        """End a stage that began where the one before ended."""
        now = time.monotonic()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage."""
        return {stage: round(seconds, 3) for stage, seconds in self._stages.items()}

    def describe(self) -> str:
        """Say it in a line: `2.1 s: before the launch 0.3, plan 0.1, …`."""
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in self._stages.items())
        return f"{sum(self._stages.values()):.2f} s: {parts}"


def process_age() -> float | None:
    """Return the seconds since the process began, to a hundredth; None where nothing says."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
        began = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return None
