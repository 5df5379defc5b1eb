"""What a supervisor says of itself in its run directory, and how others read it.

Written by the supervisor only; read by the command line, the fixtures and the sweeper.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests.cluster.paths import RunDirectory

Phase = Literal["starting", "ready"]


@dataclass(frozen=True, slots=True)
class State:
    """A supervisor's last word: who it is, how far it got, and what it may leave behind."""

    pid: int
    phase: Phase
    node: bool
    server: str = ""
    slot: int = -1  # which of the subnets it has; -1 on the loopback


def write_state(run: RunDirectory, state: State) -> None:
    """Replace the state file in one step."""
    scratch = run.state.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(state)))
    scratch.replace(run.state)


def read_state(run: RunDirectory) -> State | None:
    """Return the last state written, None if there is none."""
    try:
        return State(**json.loads(run.state.read_text()))
    except FileNotFoundError:
        return None


def is_alive(run: RunDirectory, state: State | None) -> bool:
    """Say whether the supervisor that wrote `state` still runs (and not another with its pid)."""
    if state is None:
        return False
    try:
        environment = Path(f"/proc/{state.pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(run.path) in environment
