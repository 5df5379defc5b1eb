"""The Gateway API inference extension's endpoint picker, as a process beside a cluster of ours."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import tools
from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.cluster.processes import RUN_MARK, spawn, stop, tail
from tests.control_plane.operator_process import free_port

_POOLS = "inferencepools.inference.networking.k8s.io"


@dataclass(frozen=True, slots=True)
class Picker:
    """A picker that answers; `log` is what it says."""

    port: int
    log: Path

    def pick(self, count: int, model: str) -> dict[str, int]:
        """Ask where so many requests should go; return how often which address was named."""
        program = str(tools.ensure("epp") / "pick")
        argv = [program, f"127.0.0.1:{self.port}", str(count), model]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{tail(self.log)}"
        found: dict[str, int] = json.loads(done.stdout)
        return found


def apply_crds(cluster: Cluster) -> None:
    """Install the extension's own definitions."""
    bases = tools.ensure("epp") / "manifests" / "crd" / "bases"
    cluster.kubectl("apply", "--server-side", "-f", str(bases))
    cluster.wait_established(_POOLS)


def delete_crds(cluster: Cluster) -> None:
    """Remove them, and with them all InferencePools."""
    bases = tools.ensure("epp") / "manifests" / "crd" / "bases"
    cluster.kubectl("delete", "--wait=false", "-f", str(bases))


@contextlib.contextmanager
def running(cluster: Cluster, *, pool: str, namespace: str) -> Iterator[Picker]:
    """Run the picker of a pool, with the settings that it comes with."""
    assert cluster.run is not None
    port, health, metrics = free_port(), free_port(), free_port()
    argv = [
        str(tools.ensure("epp") / "epp"),
        f"--pool-name={pool}",
        f"--pool-namespace={namespace}",
        f"--grpc-port={port}",
        f"--grpc-health-port={health}",
        f"--metrics-port={metrics}",
        "--metrics-endpoint-auth=false",
        "--tracing=false",
    ]
    log = cluster.run.logs / "epp.log"
    environment = {**os.environ, RUN_MARK: str(cluster.run.path), **cluster.environment}
    process = spawn(argv, log=log, env=environment)

    def listens() -> bool:
        assert process.poll() is None, f"the picker ended by itself:\n{tail(log)}"
        return _listens(port)

    try:
        until(listens, what="the picker's port", within_seconds=60)
        yield Picker(port, log)
    finally:
        stop([process], grace_seconds=5)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
