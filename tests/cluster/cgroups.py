"""The cgroup folders of one node, in whichever hierarchies this machine has (v1, hybrid, v2).

Called by the supervisor (make) and the watcher (remove). kubelet and runc fill them.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.processes import ClusterError

_MOUNTS = Path("/proc/self/mounts")


def _hierarchies() -> Iterator[tuple[str, Path]]:
    """Yield (type, mount point) of every cgroup hierarchy; controllers sharing one come once."""
    seen: set[tuple[int, int]] = set()
    for line in _MOUNTS.read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        if kind not in {"cgroup", "cgroup2"}:
            continue
        status = Path(point).stat()
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield kind, Path(point)


def make_cgroups(name: str) -> None:
    """Make the folder `name` at the root of every hierarchy: kubelet wants its root to exist."""
    for kind, point in _hierarchies():
        if kind == "cgroup2":
            _delegate_controllers(point)
        (point / name).mkdir(exist_ok=True)
        _weigh_as_a_machine(point / name)


def _weigh_as_a_machine(folder: Path) -> None:
    """Give a node the weight of as many busy processes as it claims to have processors."""
    processors = os.cpu_count() or 1
    for file, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (folder / file).exists():
            (folder / file).write_text(str(min(processors * one, 10_000)))


def _delegate_controllers(root: Path) -> None:
    """Let the folders under a v2 root have every controller; systemd has usually done so."""
    available = (root / "cgroup.controllers").read_text().split()
    given = (root / "cgroup.subtree_control").read_text().split()
    for controller in set(available) - set(given):
        # refused where the root itself holds processes; kubelet then names what it misses
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def cgroup_folders(pattern: str) -> list[Path]:
    """Return the folders at the root of any hierarchy whose names match a pattern."""
    return [folder for _, point in _hierarchies() for folder in point.glob(pattern)]


def remove_cgroups(name: str, *, within_seconds: float = 20.0) -> None:
    """Remove the folder `name` and all below it, depth first, from every hierarchy.

    Its processes must have been killed; the kernel may need a moment to let go of them.
    Raises ClusterError when something stays busy.
    """
    deadline = time.monotonic() + within_seconds
    for folder in cgroup_folders(name):
        while not _removed(folder):
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {folder} stays busy")
            time.sleep(0.05)


def _removed(folder: Path) -> bool:
    """Remove a cgroup tree once, and say whether all of it went."""
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if child.is_dir():
                _removed(child)
        folder.rmdir()
    return not folder.exists()
