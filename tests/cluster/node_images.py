"""Images into a running node, beside those that it starts with.

Called by tests. The node's containerd listens inside the node's own mounts.
"""

import subprocess
from pathlib import Path

from tests.cluster.paths import RunDirectory
from tests.cluster.processes import ClusterError
from tests.cluster.runtime import SOCKET


def import_archive(run: RunDirectory, archive: Path) -> None:
    """Import an OCI or docker archive into the node. Raises ClusterError."""
    inside = ["nsenter", "--mount", "--target", str(_containerd(run))]
    command = ["ctr", "-a", str(SOCKET), "-n", "k8s.io", "images", "import", str(archive)]
    result = subprocess.run([*inside, *command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise ClusterError(f"{archive} could not be imported: {result.stderr or result.stdout}")


def _containerd(run: RunDirectory) -> int:
    """Return the pid of the node's containerd, as this machine counts."""
    config = str(run.path / "containerd.toml").encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if config in words:
            return int(entry.name)
    raise ClusterError(f"no containerd runs for {run.path}")
