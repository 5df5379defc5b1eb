"""`python -m tests.sim`: the signal against its rivals, in simulated hours.

Prints Markdown: for each cold start a table of the policies, then which targets are met.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.sim.contest import COLD_STARTS, OURS, POLICIES, Maker, Row, contest, kv_frontier
from tests.sim.loads import KEPT, SHAPES, TUNING, Load, build_load
from tests.sim.report import best_default, render_loads, render_table, render_targets
from tests.sim.traces import read_trace

TUNING_SEEDS, KEPT_SEEDS = (1, 2, 3, 4, 5, 6), (301, 302)


def main() -> None:
    arguments = _parse()
    loads = _loads(arguments)
    makers: Mapping[str, Maker] = kv_frontier() if arguments.tune_rival else POLICIES
    rows: list[Row] = []
    for row in contest(loads, makers, cold_starts=arguments.cold, router=arguments.router):
        rows.append(row)
        print(f"{row.policy}, {row.cold_start} s", file=sys.stderr, flush=True)
    for cold in arguments.cold:
        _print_cold_start(cold, [row for row in rows if row.cold_start == cold])


def _print_cold_start(cold: int, rows: Sequence[Row]) -> None:
    print("\n".join([f"\n### Cold start {cold} s\n", *render_table(rows)]))
    ours = next((row for row in rows if row.policy == OURS), None)
    if ours is None:
        return
    print("\n".join(["", *render_targets(rows)]))
    print("\n".join(["", *render_loads(ours, best_default(rows))]))


def _loads(arguments: argparse.Namespace) -> list[Load]:
    if arguments.trace:
        return [read_trace(arguments.trace)]
    shapes = list(TUNING) if arguments.tuning else list(SHAPES)
    shapes = [shape for shape in shapes if arguments.load in shape]
    seeds = arguments.seeds or (TUNING_SEEDS if arguments.tuning else KEPT_SEEDS)
    return [build_load(shape, seed) for seed in seeds for shape in shapes]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    add = parser.add_argument
    add("--cold", type=int, nargs="+", default=COLD_STARTS, help="cold starts, seconds")
    add("--seeds", type=int, nargs="+", help=f"default {KEPT_SEEDS}, kept from tuning")
    add("--load", default="", help="only loads whose name has this in it")
    kept = ", ".join(KEPT)
    add("--tuning", action="store_true", help=f"seeds {TUNING_SEEDS}, without {kept}")
    add("--tune-rival", action="store_true", help="the kv_cache_usage HPA at every target instead")
    add("--trace", type=Path, help="replay a recorded trace (CSV; see tests/sim/traces.py)")
    add("--router", choices=("two", "random"), default="two", help="see tests/sim/fleet.py")
    return parser.parse_args()


if __name__ == "__main__":
    main()
