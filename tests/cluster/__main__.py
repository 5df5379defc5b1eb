"""`python -m tests.cluster start | stop | status | kubeconfig`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import launch, tools
from tests.cluster.paths import RunDirectory, default_run_directory
from tests.cluster.processes import ClusterError
from tests.cluster.state import is_alive, read_state


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description="A real Kubernetes on this machine."
    )
    parser.add_argument("command", choices=["start", "stop", "status", "kubeconfig"])
    parser.add_argument("--dir", type=Path, default=default_run_directory(), help="run directory")
    parser.add_argument(
        "--control-plane-only",
        action="store_true",
        help="no node: nothing runs, but everything is admitted and reconciled; needs no root",
    )
    return parser


def _start(run: RunDirectory, *, node: bool) -> int:
    if is_alive(run, read_state(run)):
        print(f"already running; export KUBECONFIG={run.kubeconfig}")
        return 0
    for name in ("etcd", "kubernetes"):
        tools.ensure(name)  # here, where its progress is seen
    launch.start_detached(run, node=node)
    print(run.progress.read_text(), end="")
    print(f"export KUBECONFIG={run.kubeconfig}")
    return 0


def _stop(run: RunDirectory) -> int:
    print("stopped" if launch.stop(run) else "not running")
    return 0


def _status(run: RunDirectory) -> int:
    state = read_state(run)
    if not is_alive(run, state):
        print("not running")
        return 1
    assert state is not None
    kind = "with a node" if state.node else "control plane only"
    print(f"{state.phase} ({kind}), supervisor {state.pid}, API server {state.server or '-'}")
    print(f"logs in {run.logs}")
    return 0


def _kubeconfig(run: RunDirectory) -> int:
    if not run.kubeconfig.exists() or not is_alive(run, read_state(run)):
        print(f"error: no cluster is running in {run.path}", file=sys.stderr)
        return 1
    print(run.kubeconfig)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    run = RunDirectory(args.dir.absolute())
    try:
        match args.command:
            case "start":
                return _start(run, node=not args.control_plane_only)
            case "stop":
                return _stop(run)
            case "status":
                return _status(run)
            case _:
                return _kubeconfig(run)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
