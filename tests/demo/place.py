"""Where the demo runs: a cluster of its own, or the one that KUBECONFIG names.

Called by __main__. Knows what differs between the two: who starts it, where images and model
files come from, and how this machine reaches a Service.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import launch, tools
from tests.cluster.client import Cluster
from tests.cluster.images import ENGINE_IMAGE, OPERATOR_IMAGE
from tests.cluster.paths import REPOSITORY, RunDirectory, default_run_directory, given_kubeconfig
from tests.cluster.polling import until
from tests.cluster.processes import ClusterError
from tests.cluster.state import is_alive, read_state
from tests.demo.console import DemoError, say

NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster with the images to use on it; `is_local`: its node sees this machine's files."""

    cluster: Cluster
    operator_image: str
    engine_image: str
    is_local: bool


def own_run() -> RunDirectory:
    """Return the run directory of the demo's own cluster."""
    return RunDirectory(default_run_directory())


def find_place() -> Place:
    """Return the cluster to use, started if it is the demo's own. Raises DemoError."""
    if given := given_kubeconfig():
        return _given(given)
    run = own_run()
    state = read_state(run)
    if state is not None and is_alive(run, state) and state.repository == str(REPOSITORY):
        say("already running")
    else:
        if state is not None and is_alive(run, state):
            say(f"replacing the cluster of another clone, {state.repository}")
            launch.stop(run)
        _start(run)
    return Place(Cluster(run.kubeconfig, run), OPERATOR_IMAGE, ENGINE_IMAGE, is_local=True)


def _start(run: RunDirectory) -> None:
    for name in ("etcd", "kubernetes", "helm", "pause"):
        tools.ensure(name)
    try:
        launch.start_detached(run, node=True)
    except (ClusterError, TimeoutError) as error:
        raise DemoError(str(error)) from error
    for line in run.progress.read_text().splitlines():
        say(line)


def _given(kubeconfig: Path) -> Place:
    cluster = Cluster(kubeconfig)
    nodes: list[dict[str, Any]] = cluster.get("nodes")["items"]
    held = {name for n in nodes for i in n["status"].get("images", []) for name in i["names"]}
    say(f"KUBECONFIG={kubeconfig}: {len(nodes)} node(s)")
    if {OPERATOR_IMAGE, ENGINE_IMAGE} <= held:  # started by `python -m tests.cluster start`
        return Place(cluster, OPERATOR_IMAGE, ENGINE_IMAGE, is_local=True)
    operator, engine = os.environ.get("OPERATOR_IMAGE"), os.environ.get("ENGINE_IMAGE")
    if not operator or not engine:
        raise DemoError(
            "this cluster's nodes must be able to pull our two images: build and push them "
            "(docker/README.md), then\n  make demo OPERATOR_IMAGE=… ENGINE_IMAGE=…\n"
            "or unset KUBECONFIG for a cluster on this machine"
        )
    return Place(cluster, operator, engine, is_local=False)


@contextlib.contextmanager
def reach(place: Place, name: str) -> Iterator[str]:
    """Yield a URL of a Service of ours that works from this machine while the block lasts."""
    service = place.cluster.get("service", name, "-n", NAMESPACE)
    address, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]
    if place.is_local and _answers(address, port):
        yield f"http://{address}:{port}"
        return
    with _forwarded(place.cluster, name, port) as local:
        yield f"http://127.0.0.1:{local}"


def _answers(address: str, port: int) -> bool:
    """Say whether a Service can be reached, allowing its packet filter rules a few seconds."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1.0):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def _forwarded(cluster: Cluster, name: str, port: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        local: int = free.getsockname()[1]
    target = ("-n", NAMESPACE, f"service/{name}", f"{local}:{port}")
    forward = subprocess.Popen(
        [str(cluster.kubectl_path), "port-forward", *target],
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: _answers("127.0.0.1", local), what="kubectl port-forward", within_seconds=30)
        yield local
    finally:
        forward.terminate()
        forward.wait()


def kubectl_hint(place: Place) -> list[str]:
    """Return the lines that make a shell's kubectl and helm mean this cluster."""
    lines = [f"export KUBECONFIG={place.cluster.kubeconfig}"]
    if place.cluster.run is not None or shutil.which("kubectl") is None:
        folders = (tools.ensure("kubernetes"), tools.ensure("helm"))
        lines.append(f"export PATH={':'.join(map(str, folders))}:$PATH")
    return lines
