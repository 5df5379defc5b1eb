"""Starts and ends supervisors: detached for people, on a lifeline for tests.

Called by the command line, the fixtures and the demo.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from tests.cluster.client import Cluster
from tests.cluster.paths import REPOSITORY, RunDirectory
from tests.cluster.polling import until
from tests.cluster.processes import RUN_MARK, ClusterError, is_locked, kill_marked, tail
from tests.cluster.state import State, is_alive, read_state
from tests.cluster.subnets import take_slot
from tests.cluster.watcher import sweep_slot

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0


@contextlib.contextmanager
def running(run: RunDirectory, *, node: bool) -> Iterator[Cluster]:
    """Hold a cluster up inside a `with`; it ends with the block, or with this process."""
    supervisor = spawn_supervisor(run, node=node, lifeline=True)
    try:
        wait_until_ready(supervisor, run)
        yield Cluster(run.kubeconfig, run)
    finally:
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        supervisor.wait(_STOP_SECONDS)
        await_end(run)


def start_detached(run: RunDirectory, *, node: bool) -> subprocess.Popen[bytes]:
    """Start a cluster that outlives this process; return its supervisor. Raises ClusterError."""
    supervisor = spawn_supervisor(run, node=node, lifeline=False)
    try:
        wait_until_ready(supervisor, run)
    except BaseException:
        supervisor.terminate()
        supervisor.wait(_STOP_SECONDS)
        raise
    return supervisor


def spawn_supervisor(run: RunDirectory, *, node: bool, lifeline: bool) -> subprocess.Popen[bytes]:
    """Start a supervisor in a session of its own, its words going to `supervisor.log`."""
    run.path.mkdir(parents=True, exist_ok=True)
    mode = [] if node else ["--control-plane-only"]
    watch = ["--lifeline"] if lifeline else []
    argv = [sys.executable, "-m", "tests.cluster.supervisor", "--dir", str(run.path), *mode, *watch]
    with run.progress.open("wb") as output:
        return subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env={**os.environ, RUN_MARK: str(run.path)},
            stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_ready(supervisor: subprocess.Popen[bytes], run: RunDirectory) -> State:
    """Return once the supervisor says that it is ready. Raises ClusterError with its last words."""

    def ready() -> State | None:
        if supervisor.poll() is not None:
            raise ClusterError(f"the cluster did not start:\n{tail(run.progress, lines=20)}")
        state = read_state(run)
        is_its_own = state is not None and state.pid == supervisor.pid
        return state if is_its_own and state.phase == "ready" else None

    return until(ready, what=f"cluster in {run.path} ready", within_seconds=_START_SECONDS)


def stop(run: RunDirectory) -> bool:
    """End the cluster in `run` and say whether there was one; clean up, also if it was killed."""
    state = read_state(run)
    was_alive = is_alive(run, state)
    if state is not None and was_alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, signal.SIGTERM)
    await_end(run)
    kill_marked(run.path)
    if os.geteuid() == 0:
        _, lock = take_slot(sweep_slot)  # for its sweeping
        os.close(lock)
    return was_alive


def await_end(run: RunDirectory) -> None:
    """Return once the supervisor is gone and its watcher has cleaned up."""
    until(
        lambda: not is_locked(run.lock),
        what=f"end of the cluster in {run.path}",
        within_seconds=_STOP_SECONDS,
        every_seconds=0.05,
    )
