"""Outlives the supervisor of a node, however that ends, and removes what the kernel does not.

Started by the supervisor with the read end of a pipe that only the supervisor can write to: its
end of file is the supervisor's end. The watcher also holds the cluster's locks, so nobody takes
the run directory or the slot before all is clean.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.bring_up import say
from tests.cluster.cgroups import remove_cgroups
from tests.cluster.paths import RunDirectory
from tests.cluster.processes import ClusterError, kill_marked
from tests.cluster.subnets import Slot


def main() -> int:
    """Wait for the supervisor's end, then clean up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--supervisor", type=int, required=True, help="read end of its pipe")
    parser.add_argument("--armed", type=int, required=True, help="where to say that we watch")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group, they mean the supervisor
    supervisor = os.getppid()
    os.close(args.armed)
    while os.read(args.supervisor, 1024):
        pass
    _let_end(supervisor)
    try:
        sweep(RunDirectory(args.dir), Slot(args.slot))
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


def _let_end(supervisor: int) -> None:
    """Give a supervisor that closed its pipe the moment it needs to exit by itself."""
    deadline = time.monotonic() + 5.0
    while os.getppid() == supervisor and time.monotonic() < deadline:
        time.sleep(0.02)


def sweep(run: RunDirectory, slot: Slot) -> None:
    """End all processes of a cluster, then remove its link and cgroups. Raises ClusterError."""
    kill_marked(run.path)
    sweep_slot(slot)
    run.state.unlink(missing_ok=True)


def sweep_slot(slot: Slot) -> None:
    """Remove what a slot's last cluster left, if anything."""
    if Path("/sys/class/net", slot.interface).exists():
        # it goes with the node's namespace, but the kernel takes its time over that
        subprocess.run(["ip", "link", "delete", slot.interface], check=False, capture_output=True)
    remove_cgroups(slot.cgroup)


if __name__ == "__main__":
    sys.exit(main())
