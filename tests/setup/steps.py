"""How set-up talks: one line when a step starts that takes time, one when it ends, with seconds.

Called by the other modules here. Commands' own output goes to a log and is shown on failure only.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster.paths import cache_dir


class SetupError(Exception):
    """A prerequisite can't be had; the message says which, and how to get it."""


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say that `what` begins, and how long it took if it succeeds."""
    print(f"▸ {what}", flush=True)
    start = time.monotonic()
    yield
    print(f"  done in {time.monotonic() - start:.0f} s", flush=True)


def run_logged(argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None) -> None:
    """Run a command with its output in <cache>/logs/LOG. Raises SetupError with the log's end."""
    path = cache_dir() / "logs" / log
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as output:
        result = subprocess.run(
            list(argv),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            check=False,
        )
    if result.returncode:
        raise SetupError(f"{' '.join(argv)} failed:\n{_tail(path)}\n  (all of it: {path})")


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-12:]
    return "\n".join(f"  {line}" for line in lines)
