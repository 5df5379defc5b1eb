"""`qwen-engine` and `python -m qwen_engine`."""

from __future__ import annotations

import os
import sys

from qwen_engine.cli import run


def main() -> None:
    # By default OpenMP threads spin at the end of each of a step's hundreds of parallel regions
    # until the slowest is there. Where another process holds a core (a busy node, a CPU quota)
    # that takes a scheduler's slice each time: on two cores shared with two busy processes
    # SmolLM2 decoded 1.3 tokens/s spinning and 14 to 20 passive. A bounded spin is no way out: on
    # cores shared with ten busy processes one token of Qwen3-0.6B took 0.28 s passive, 0.32 with
    # GOMP_SPINCOUNT=2000 and 0.55 with 20,000. libgomp reads this when torch is imported, later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
