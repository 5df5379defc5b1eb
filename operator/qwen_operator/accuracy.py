"""Prediction against measurement: the plan's ledger beside what an engine says it took. Pure.

Called by `status`. Lines are compared by component; the engine uses the ledger's own names. What
the plan leaves unused is no prediction, and the peak of a step is one only from above: an engine
that has not been busy yet has not reached it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import format_bytes

Json = Mapping[str, Any]
TOLERANCE = 0.10  # of all that was planned
_NO_PREDICTION = ("unused", "reserve")
_PEAK = "activations"
_COUNTED = ("weights", "kv-cache")  # computed exactly, so 10 % of the line itself is far off
_NOTICEABLE = 0.01  # of all that was measured; less is not worth a write of status


@dataclass(frozen=True, slots=True)
class Line:
    """One component, planned and measured."""

    component: str
    planned: int
    measured: int

    @property
    def excess(self) -> int:
        """Bytes by which the plan was wrong; negative if too many were planned."""
        difference = self.measured - self.planned
        return max(0, difference) if self.component == _PEAK else difference


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A plan's lines on the device, compared on one pod. Never without lines."""

    pod: str
    lines: tuple[Line, ...]

    @property
    def planned(self) -> int:
        """All that was planned."""
        return sum(line.planned for line in self.lines)

    @property
    def measured(self) -> int:
        """All that was taken."""
        return sum(line.measured for line in self.lines)

    @property
    def worst(self) -> Line:
        """The line that is off the most."""
        return max(self.lines, key=lambda line: abs(line.excess))

    @property
    def is_accurate(self) -> bool:
        """Whether all is within 10 % of the whole, and counted lines within 10 % of themselves."""
        off = abs(sum(line.excess for line in self.lines)), abs(self.worst.excess)
        return max(off) <= TOLERANCE * self.planned and all(
            abs(line.excess) <= TOLERANCE * line.planned
            for line in self.lines
            if line.component in _COUNTED
        )


def compare(plan: Json, measured: Mapping[str, Mapping[str, int]], old: Json) -> Accuracy | None:
    """Compare a plan with the pod that took the most; None if none told.

    Args:
        measured: bytes by component, by pod.
        old: the comparison in status; its pod is kept while another took hardly more.
    """
    found = [_compare(plan, pod, lines) for pod, lines in sorted(measured.items()) if lines]
    known = [accuracy for accuracy in found if accuracy.planned > 0]
    if not known:
        return None
    most = max(known, key=lambda accuracy: accuracy.measured)
    before = next((a for a in known if a.pod == old.get("pod")), most)
    return before if before.measured >= (1 - _NOTICEABLE) * most.measured else most


def to_json(accuracy: Accuracy, old: Json) -> dict[str, Any]:
    """Return a comparison as status holds it: the old one if nothing has moved noticeably."""
    lines = [_line_json(line) for line in accuracy.lines]
    if old.get("pod") == accuracy.pod and _is_near(lines, old.get("lines", ()), accuracy.measured):
        return dict(old)
    whole = _line_json(Line("", accuracy.planned, accuracy.measured))
    whole.pop("component")
    return {"pod": accuracy.pod, **whole, "lines": lines}


def from_json(found: Json) -> Accuracy | None:
    """Read what `to_json` wrote; None where there is nothing."""
    lines = tuple(
        Line(line["component"], line["plannedBytes"], line["measuredBytes"])
        for line in found.get("lines", ())
    )
    return Accuracy(found["pod"], lines) if lines else None


def percent(line: Line | Accuracy) -> str:
    """Return by how much more was taken than planned, such as `-3.8 %`."""
    if line.planned == 0:
        return "not planned"
    found = f"{100 * (line.measured - line.planned) / line.planned:+.1f} %"
    is_unreached = isinstance(line, Line) and line.component == _PEAK and found.startswith("-")
    return f"{found} so far" if is_unreached else found


def _compare(plan: Json, pod: str, measured: Mapping[str, int]) -> Accuracy:
    planned = {line["component"]: int(line["bytes"]) for line in plan["ledger"]}
    beside = {line["component"] for line in plan.get("hostLedger", ())} - planned.keys()
    names = [name for name in planned if name not in _NO_PREDICTION]
    names += [n for n in measured if n not in planned and n not in beside]
    return Accuracy(
        pod,
        tuple(
            Line(name, planned.get(name, 0), measured.get(name, 0))
            for name in names
            if name in measured or planned[name] > 0
        ),
    )


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "component": line.component,
        "plannedBytes": line.planned,
        "planned": format_bytes(line.planned),
        "measuredBytes": line.measured,
        "measured": format_bytes(line.measured),
        "error": percent(line),
    }


def _is_near(new: Sequence[Json], old: Sequence[Json], total: int) -> bool:
    before = {line["component"]: line for line in old}
    if before.keys() != {line["component"] for line in new}:
        return False
    return all(
        line["plannedBytes"] == before[line["component"]]["plannedBytes"]
        and abs(line["measuredBytes"] - before[line["component"]]["measuredBytes"])
        <= _NOTICEABLE * total
        for line in new
    )
