"""What must be set in a process before torch is imported.

Called by who imports torch first: `qwen-engine` and the Python API. What the user has set stays.
"""

from __future__ import annotations

import os

# A step has hundreds of parallel regions. Where threads sleep at the end of each, waking them takes
# as long as a small region; where they spin until the slowest is there, as OpenMP does by default,
# and another process holds a core (a busy node, a CPU quota), that takes a scheduler's slice each
# time: on two cores shared with two busy processes SmolLM2 decoded 1.3 tokens/s spinning without
# bound and 14 to 20 sleeping. So they spin for some tens of microseconds, then sleep: on cores
# shared with ten busy processes a token of Qwen3-0.6B took 0.28 s sleeping, 0.32 with 2,000 spins,
# 0.55 with 20,000.
_SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"}


def prepare() -> None:
    """Set what the user has not."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
