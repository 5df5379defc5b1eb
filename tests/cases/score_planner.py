"""Score the planner on a file of published start-ups.

    python tests/cases/score_planner.py FILE [--no-leave-one-out]

Prints each record, then the totals beside two floors: "ok to everything" and "parameters × bytes ×
1.2"; then the same with constants fitted on all records, and fitted without the record itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from tests.cases import fitting  # noqa: E402
from tests.cases.records import read_records  # noqa: E402
from tests.cases.scoring import GIB, NEEDS, Scored, score, totals  # noqa: E402


def main() -> int:
    """Print the scores; exit with 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--no-leave-one-out", action="store_true", help="skip the fits: faster")
    arguments = parser.parse_args()
    rows = [score(record) for record in read_records(arguments.file)]
    for row in rows:
        print(_line(row))
    samples = fitting.samples_of(rows)
    print()
    for name, found in totals(rows).items():
        floors = f"parameters × bytes × 1.2: {found['naive']}"
        if name == "starts":
            floors = f'"ok" to everything: {found["ok"]}; ' + floors
        print(f"{name:11} {found['met']:3} of {found['of']:3}   ({floors})")
    if samples and not arguments.no_leave_one_out:
        _print_fits(samples)
    print(_last_line(rows, samples))
    return 0


def _line(row: Scored) -> str:
    words = [row.record.id]
    if row.weights_error is not None:
        words.append(f"weights {100 * row.weights_error:+.2f}%")
    if row.kv_error_gib is not None and row.kv_error is not None:
        words.append(f"KV {row.kv_error_gib:+.2f} GiB ({100 * row.kv_error:+.1f}%)")
    if "outcome" in row.record.score_on:
        said = row.price.outcome if row.price else "memory not stated"
        words.append(f"{said} (seen: {row.record.right_outcome})")
    missed = [name for name, is_met in row.meets.items() if not is_met]
    words.append("MISSED " + ", ".join(missed) if missed else "met" if row.meets else "not scored")
    if row.price is not None:
        price = row.price
        words.append(
            f"[weights {price.weight_bytes / GIB:.2f}"
            f" + {price.peak} {price.activation_bytes / GIB:.2f}"
            f" + other {price.non_torch_bytes / GIB:.2f} + graphs {price.graph_bytes / GIB:.2f}"
            f" of {price.budget_bytes / GIB:.2f} GiB]"
        )
    return "  ".join([*words, row.record.text])


def _print_fits(samples: list[fitting.Sample]) -> None:
    best = fitting.fit(samples)
    fitted = {sample.id: fitting.kv_error_gib(sample, best) for sample in samples}
    for title, errors in (
        ("fitted on all", fitted),
        ("leave one out", fitting.leave_one_out(samples)),
    ):
        found = fitting.summary(samples, errors)
        print(
            f"{title}: kv 10% {found['kv 10%']:.0f}, kv wide {found['kv wide']:.0f} of "
            f"{len(samples)}, median {found['median']:.3f} GiB"
        )


def _last_line(rows: list[Scored], samples: list[fitting.Sample]) -> str:
    found = totals(rows)
    parts = [f"{name} {found[name]['met']}/{found[name]['of']}" for name in NEEDS]
    if samples:
        own = {s.id: fitting.kv_error_gib(s, fitting.CONSTANTS) for s in samples}
        parts.append(f"median KV error {fitting.summary(samples, own)['median']:.3f} GiB")
    return "totals: " + ", ".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
