"""Which addresses and names a cluster with a node has, so that several can run at once.

Pure numbers, plus the locks that say which slots are taken. All addresses are in 198.18.0.0/15,
which RFC 2544 sets aside for tests, so no real network is shadowed.
"""

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import ClusterError, is_locked, try_lock

ALL_CLUSTERS = "198.18.0.0/15"
SERVICES_WITHOUT_NODE = "198.19.254.0/24"
SIMULATED_PODS = "198.19.252.0/24"

SLOTS = 64
_LOCKS = Path("/run/qwen-clusters")
_BASE = int(ipaddress.IPv4Address("198.18.0.0"))


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the places for a node on this machine: its names and subnets."""

    number: int

    def _network(self, third: int, length: int) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((_BASE + self.number * 1024 + third * 256, length))

    @property
    def pod_cidr(self) -> str:
        """Pods' addresses."""
        return str(self._network(0, 24))

    @property
    def link_cidr(self) -> str:
        """The two ends of the link between host and node."""
        return str(self._network(1, 30))

    @property
    def host_address(self) -> str:
        """The host's end of the link."""
        return str(self._network(1, 30)[1])

    @property
    def node_address(self) -> str:
        """The node's end of the link, and the node's own address."""
        return str(self._network(1, 30)[2])

    @property
    def service_cidr(self) -> str:
        """Services' addresses."""
        return str(self._network(2, 24))

    @property
    def interface(self) -> str:
        """The host's end of the link, by name."""
        return f"qwen{self.number}"

    @property
    def cgroup(self) -> str:
        """The node's folder in every cgroup hierarchy."""
        return f"qwen-cluster-{self.number}"


def take_slot(sweep: Callable[[Slot], None]) -> tuple[Slot, int]:
    """Take a free slot, after `sweep` has cleaned every free one; return it and its lock.

    Raises ClusterError when all are taken.
    """
    taken: tuple[Slot, int] | None = None
    for slot in map(Slot, range(SLOTS)):
        if (lock := try_lock(_LOCKS / str(slot.number))) is None:
            continue
        sweep(slot)  # a cluster whose watcher was killed too may have left something
        if taken is None:
            taken = (slot, lock)
        else:
            os.close(lock)
    if taken is None:
        raise ClusterError(f"{SLOTS} clusters are running on this machine: stop one first")
    return taken


def taken_slots() -> list[Slot]:
    """Return the slots of the clusters that are running now."""
    return [slot for slot in map(Slot, range(SLOTS)) if is_locked(_LOCKS / str(slot.number))]
