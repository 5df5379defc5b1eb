"""What a supervisor says of itself in its run directory, and how others read it.

Written by the supervisor only; read by the command line, the fixtures and the sweeper.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from tests.cluster.paths import REPOSITORY, RunDirectory

Phase = Literal["starting", "ready"]


@dataclass(frozen=True, slots=True)
class State:
    """A supervisor's last word: who it is, how far it got, and what it may leave behind."""

    pid: int
    phase: Phase
    node: bool
    server: str = ""
    slot: int = -1  # which of the subnets it has; -1 on the loopback
    repository: str = str(REPOSITORY)  # the clone whose source its pods run


def write_state(run: RunDirectory, state: State) -> None:
    """Replace the state file in one step."""
    scratch = run.state.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(state)))
    scratch.replace(run.state)


def read_state(run: RunDirectory) -> State | None:
    """Return the last state written, None if there is none."""
    try:
        told = json.loads(run.state.read_text())
    except FileNotFoundError:
        return None
    known = {field.name for field in fields(State)}  # another clone may be older or newer
    return State(**{name: value for name, value in told.items() if name in known})


def is_alive(run: RunDirectory, state: State | None) -> bool:
    """Say whether the supervisor that wrote `state` still runs (and not another with its pid)."""
    if state is None:
        return False
    try:
        environment = Path(f"/proc/{state.pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(run.path) in environment
