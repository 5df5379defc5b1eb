"""Work of several sides, done in turns, so that what else the machine does hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Row:
    """The same work by all sides, ours first.

    Attributes:
        is_warm: another row warmed all sides up.
    """

    name: str
    sides: Mapping[str, Callable[[], object]]
    is_warm: bool = False


def measure(row: Row, rounds: int) -> dict[str, float]:
    """Return each side's median in seconds; unless all is warm, a first round does not count."""
    spare = 0 if row.is_warm else 1
    samples: dict[str, list[float]] = {name: [] for name in row.sides}
    names = list(row.sides)
    for number in range(rounds + spare):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            row.sides[name]()
            samples[name].append(time.perf_counter() - began)
    return {name: median(seconds[spare:]) for name, seconds in samples.items()}


def line(row: Row, medians: Mapping[str, float]) -> str:
    """Return the row in Markdown; the last column is ours by the best of the others."""
    ours, *others = medians.values()
    peers = " / ".join(f"{name} {_shown(seconds)}" for name, seconds in list(medians.items())[1:])
    return f"| {row.name} | {_shown(ours)} | {peers} | {ours / min(others):.2f} |"


HEADER = "| work | ours | others | ours ÷ best |\n|---|---|---|---|"


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
