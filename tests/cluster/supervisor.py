"""The one parent process of a cluster: when it ends, by any signal, the cluster is gone.

Started by launch.py (`python -m tests.cluster.supervisor --dir DIR`), never imported by tests.
Children can't outlive it: the kernel kills them with it (processes.die_with).
"""

import argparse
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from tests.cluster import tools
from tests.cluster.bring_up import Components, say, start_control_plane
from tests.cluster.control_plane import ControlPlaneSettings
from tests.cluster.node_supervision import supervise_node
from tests.cluster.paths import RunDirectory
from tests.cluster.processes import ClusterError, kill_marked, try_lock
from tests.cluster.state import State, is_alive, read_state, write_state

_CHECK_SECONDS = 1.0
_TAKE_OVER_SECONDS = 30.0


class Ended(Exception):
    """Somebody asked the supervisor to end, by signal."""


def main() -> int:
    """Hold a cluster up until told to end, by signal or by the end of standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--control-plane-only", action="store_true")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input does")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    run = RunDirectory(args.dir)
    try:
        lock = _take(run)
        clear(run)
        if args.control_plane_only:
            _supervise_loopback(run, lifeline=args.lifeline)
        else:
            supervise_node(run, lock=lock, wait=partial(wait_for_the_end, lifeline=args.lifeline))
    except (ClusterError, TimeoutError) as error:
        say(f"error: {error}")
        return 1
    except Ended:
        return 0
    return 0


def _take(run: RunDirectory) -> int:
    """Lock the run directory for good. Raises ClusterError when another supervisor has it."""
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while (lock := try_lock(run.lock)) is None:
        # a watcher may still be cleaning up behind a supervisor that was killed
        if is_alive(run, read_state(run)) or time.monotonic() > deadline:
            raise ClusterError(f"a cluster is already running in {run.path}")
        time.sleep(0.1)
    return lock


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Ended


def clear(run: RunDirectory) -> None:
    """Remove what an earlier cluster in this directory left: processes, data, state."""
    kill_marked(run.path)
    for name in ("etcd", "certs", "logs", "containerd", "kubelet", "pod-logs"):
        shutil.rmtree(run.path / name, ignore_errors=True)
    for file in (run.state, run.kubeconfig, run.node_ready):
        file.unlink(missing_ok=True)


def _supervise_loopback(run: RunDirectory, *, lifeline: bool) -> None:
    components = Components(run)
    settings = _loopback_settings(run)
    write_state(run, State(os.getpid(), "starting", node=False))
    try:
        start_control_plane(settings, components)
        write_state(run, State(os.getpid(), "ready", node=False, server=settings.server))
        say(f"ready: {settings.server}")
        wait_for_the_end(components.check, lifeline=lifeline)
    finally:
        components.stop()
        run.state.unlink(missing_ok=True)


def _loopback_settings(run: RunDirectory) -> ControlPlaneSettings:
    port, etcd_port, etcd_peer_port = _free_ports(3)
    return ControlPlaneSettings(
        run=run,
        etcd_bin=tools.ensure("etcd"),
        kubernetes_bin=tools.ensure("kubernetes"),
        address="127.0.0.1",
        port=port,
        etcd_port=etcd_port,
        etcd_peer_port=etcd_peer_port,
    )


def _free_ports(count: int) -> list[int]:
    """Return ports nobody listens on; all are held until all are known, so they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_for_the_end(check: Callable[[], None], *, lifeline: bool) -> None:
    """Call `check` every second; return when standard input ends, if that is the lifeline."""
    while True:
        readable, _, _ = select.select([0] if lifeline else [], [], [], _CHECK_SECONDS)
        if readable and not os.read(0, 1024):
            return
        check()


if __name__ == "__main__":
    sys.exit(main())
