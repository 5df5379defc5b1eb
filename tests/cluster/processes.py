"""Child processes that can't outlive their parent.

Called by the supervisor and by the node's first process. Knows nothing of Kubernetes.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

RUN_MARK = "QWEN_CLUSTER_RUN"
"""Environment variable that every process of a cluster inherits; its value is the run directory."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ClusterError(Exception):
    """A cluster can't start, or can't go on; the message says why and what to do."""


def die_with(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` after which the kernel kills the child as soon as `parent` ends.

    The signal comes when the *thread* that forked ends, so call Popen from the main thread.
    """

    def bind() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the line above
            os._exit(1)

    return bind


def spawn(argv: Sequence[str], *, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `argv` with its output appended to `log`; the kernel ends it with this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            # a session of its own: Ctrl-C at the terminal reaches the supervisor only
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - calls only prctl
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], *, grace_seconds: float) -> None:
    """Send SIGTERM to the processes, last started first, and SIGKILL to those that linger."""
    deadline = time.monotonic() + grace_seconds
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def marked_pids(run: Path) -> Iterator[int]:
    """Yield the processes of the cluster in `run`, except the caller itself."""
    mark = f"{RUN_MARK}={run}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # gone meanwhile, or another user's
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def kill_marked(run: Path, *, within_seconds: float = 20.0) -> list[int]:
    """SIGKILL every process of the cluster in `run`, wait until all are gone; return their pids."""
    killed: list[int] = []
    deadline = time.monotonic() + within_seconds
    while pids := list(marked_pids(run)):
        killed += [pid for pid in pids if pid not in killed]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {pids} of {run} don't end, not even by SIGKILL")
        time.sleep(0.02)
    return killed


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, once its holder lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(path: Path) -> int | None:
    """Lock `path` and return the open file that holds the lock, None if it is held already.

    The lock lasts as long as any process has a copy of the file, however that process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Say whether somebody holds the lock on `path`."""
    if (lock := try_lock(path)) is None:
        return True
    os.close(lock)
    return False


def tail(log: Path, *, lines: int = 8) -> str:
    """Return the last lines of a log, indented, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
