"""The supervisor's part of a node: its namespaces, its link to the host, and its watcher.

Called by supervisor.py. What happens inside the namespaces is node.py's.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.cluster import tools
from tests.cluster.bring_up import say
from tests.cluster.cgroups import make_cgroups
from tests.cluster.client import Cluster
from tests.cluster.paths import RunDirectory
from tests.cluster.polling import until
from tests.cluster.processes import ClusterError, die_with
from tests.cluster.state import State, write_state
from tests.cluster.subnets import Slot, take_slot
from tests.cluster.watcher import sweep_slot

_READY_SECONDS = 120.0
_SYSTEM_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin"
_NEEDED = ("containerd", "runc", "iptables", "ip", "unshare", "ctr")

Wait = Callable[[Callable[[], None]], None]
"""Returns when the cluster shall end; calls its argument meanwhile, which raises if it must."""


def supervise_node(run: RunDirectory, *, lock: int, wait: Wait) -> None:
    """Hold a cluster with a node up for as long as `wait` does. Raises ClusterError."""
    _check_machine(run)
    for name in ("etcd", "kubernetes", "pause"):
        tools.ensure(name)
    slot, slot_lock = take_slot(sweep_slot)
    state = State(os.getpid(), "starting", node=True, slot=slot.number)
    write_state(run, state)
    with _watched(run, slot, (lock, slot_lock)) as watcher:
        make_cgroups(slot.cgroup)
        with _node(run, slot) as node:

            def check() -> None:
                if node.poll() is not None:
                    raise ClusterError("the node ended")
                if watcher.poll() is not None:
                    raise ClusterError("the watcher that cleans up behind the node ended")

            _link(slot, check)
            _await_ready(run, check)
            server = f"https://{slot.node_address}:6443"
            write_state(run, replace(state, phase="ready", server=server))
            say(f"ready: {server}")
            wait(check)


def _check_machine(run: RunDirectory) -> None:
    if os.geteuid() != 0:
        raise ClusterError("a node needs root; --control-plane-only does not")
    os.environ["PATH"] += f":{_SYSTEM_PROGRAMS}"  # absent for root after a plain `su`
    folders = os.environ["PATH"].split(":")
    missing = [p for p in _NEEDED if not any(Path(folder, p).exists() for folder in folders)]
    if missing:
        raise ClusterError(
            f"missing: {', '.join(missing)}. Get them with: apt-get install "
            "containerd runc containernetworking-plugins iptables iproute2 util-linux"
        )
    if run.path.is_relative_to("/run"):
        raise ClusterError(f"{run.path} is under /run, which a node has for itself: use --dir")


@contextlib.contextmanager
def _watched(
    run: RunDirectory, slot: Slot, locks: tuple[int, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    """Have a watcher clean up after this process, whatever ends it, from here on."""
    read, write = os.pipe()
    armed_read, armed_write = os.pipe()
    argv = [sys.executable, "-m", "tests.cluster.watcher", "--dir", str(run.path)]
    argv += ["--slot", str(slot.number), "--supervisor", str(read), "--armed", str(armed_write)]
    kept = (read, armed_write, *locks)
    watcher = subprocess.Popen(argv, pass_fds=kept, start_new_session=True)
    os.close(read)
    os.close(armed_write)
    os.read(armed_read, 1)  # its end of file: the watcher is at its post
    os.close(armed_read)
    try:
        yield watcher
    finally:
        if watcher.poll() is not None:
            sweep_slot(slot)  # nobody else is left to
        os.close(write)


@contextlib.contextmanager
def _node(run: RunDirectory, slot: Slot) -> Iterator[subprocess.Popen[bytes]]:
    """Run the node's first process in fresh namespaces; all in them ends with the block."""
    host_network = os.open("/proc/self/ns/net", os.O_RDONLY)
    argv = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child"]
    argv += ["--mount-proc", sys.executable, "-m", "tests.cluster.node", "--dir", str(run.path)]
    argv += ["--slot", str(slot.number), "--host-network", str(host_network)]
    node = subprocess.Popen(
        argv,
        pass_fds=(host_network,),
        start_new_session=True,
        preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - calls only prctl
    )
    os.close(host_network)
    try:
        yield node
    finally:
        node.kill()  # unshare, and with it (--kill-child) the first process, and with that the rest
        node.wait()


def _link(slot: Slot, check: Callable[[], None]) -> None:
    """Configure the host's end of the link as soon as the node has made it."""

    def is_there() -> bool:
        check()
        return Path("/sys/class/net", slot.interface).exists()

    until(is_there, what="the link to the node", within_seconds=30, every_seconds=0.02)
    length = slot.link_cidr.partition("/")[2]
    commands = [
        ["address", "add", f"{slot.host_address}/{length}", "dev", slot.interface],
        ["link", "set", slot.interface, "up"],
        ["route", "add", slot.pod_cidr, "via", slot.node_address],
        ["route", "add", slot.service_cidr, "via", slot.node_address],
    ]
    for command in commands:
        result = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if result.returncode:
            raise ClusterError(f"ip {' '.join(command)}: {result.stderr.strip()}")


def _await_ready(run: RunDirectory, check: Callable[[], None]) -> None:
    """Return when the node is Ready and its API server answers the host."""

    def is_ready() -> bool:
        check()
        return run.node_ready.exists()

    until(is_ready, what="the node Ready", within_seconds=_READY_SECONDS)
    Cluster(run.kubeconfig, run).kubectl("get", "--raw", "/readyz")
