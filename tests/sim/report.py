"""The report: a table per cold start, and which targets are met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.sim.contest import DEFAULTS, ORACLE, OURS, TUNED, Row

_HEAD = (
    "| policy | exhausted, s | waited > 5 s | replica-hours | direction changes |",
    "|---|--:|--:|--:|--:|",
)


def render_table(rows: Iterable[Row]) -> list[str]:
    """Return the rows of one cold start as a Markdown table."""
    return [*_HEAD, *map(_line, rows)]


def _line(row: Row) -> str:
    turns = "–" if row.policy == ORACLE else f"{row.direction_changes:.0f}"
    return (
        f"| {row.policy} | {row.exhausted_seconds:,.0f} | {row.late_share:.1%} "
        f"| {row.replica_hours:.0f} | {turns} |"
    )


def render_loads(ours: Row, other: Row) -> list[str]:
    """Return what two policies did on each load: exhausted seconds, hours, changes."""
    loads = dict.fromkeys(o.load for o in ours.outcomes)
    rows = [f"| {load} | {_cell(ours, load)} | {_cell(other, load)} |" for load in loads]
    return [f"| load | ours | {other.policy} |", "|---|---|---|", *rows]


def _cell(row: Row, load: str) -> str:
    found = [o for o in row.outcomes if o.load == load]
    hours = sum(o.replica_hours for o in found) / len(found)
    turns = max(o.direction_changes for o in found)
    late = sum(o.late for o in found) / max(1, sum(o.requests for o in found))
    return f"{row.exhausted_on(load):.0f} s, {late:.1%}, {hours:.1f} h, ≤ {turns}"


def best_default(rows: Sequence[Row]) -> Row:
    """Return the default rival that is exhausted least, within 1.5 × the oracle's hours."""
    limit = 1.5 * _named(rows, ORACLE).replica_hours
    within = [r for r in rows if r.policy in DEFAULTS and r.replica_hours <= limit]
    return min(within, key=lambda row: row.exhausted_seconds)


def render_targets(rows: Sequence[Row]) -> list[str]:
    """Return one line for each target of a cold start: what is asked, what was found."""
    ours, tuned, oracle = (_named(rows, name) for name in (OURS, TUNED, ORACLE))
    rival = best_default(rows)
    loads = dict.fromkeys(o.load for o in ours.outcomes)
    worse, where = max((ours.exhausted_on(x) - rival.exhausted_on(x), x) for x in loads)
    ratio = ours.exhausted_seconds / max(tuned.exhausted_seconds, 1e-9)
    third = ours.exhausted_seconds / max(rival.exhausted_seconds, 1e-9)
    hours = ours.replica_hours / oracle.replica_hours
    return [
        _verdict(ratio <= 0.45, f"exhausted {ratio:.2f} × {tuned.policy} (≤ 0.45)"),
        _verdict(
            ours.replica_hours <= tuned.replica_hours,
            f"at {ours.replica_hours:.0f} replica-hours against its {tuned.replica_hours:.0f}",
        ),
        _verdict(third <= 1 / 3, f"exhausted {third:.2f} × {rival.policy} (≤ 0.33)"),
        _verdict(worse <= 5, f"worse than it by at most 5 s on any load: {worse:+.0f} s ({where})"),
        _verdict(hours <= 1.35, f"replica-hours {hours:.2f} × oracle (≤ 1.35)"),
        _verdict(
            ours.changes_per_peak <= 1,
            f"direction changes {ours.changes_per_peak:.2f} per load peak (≤ 1)",
        ),
        _verdict(ours.most_changes <= 3, f"at most {ours.most_changes} in any run (≤ 3)"),
    ]


def _verdict(is_met: bool, text: str) -> str:
    return f"- {'met' if is_met else '**not met**'}: {text}"


def _named(rows: Sequence[Row], name: str) -> Row:
    return next(row for row in rows if row.policy == name)
