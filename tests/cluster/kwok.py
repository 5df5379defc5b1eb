"""Nodes that are only labels and numbers: KWOK plays their kubelet.

Called by the `kwok_nodes` fixture. Such nodes stand for fleets of GPUs that nobody has at hand;
pods on them become Running and Ready, but run nothing.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster import tools
from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.cluster.processes import RUN_MARK, spawn, stop, tail
from tests.cluster.subnets import SIMULATED_PODS

_STAGES = Path(__file__).parent / "kwok_stages.yaml"
_MANAGED = {"kwok.x-k8s.io/node": "fake"}
_ORDINARY_NODE = {"cpu": "32", "memory": "256Gi", "pods": "110"}


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    """Run the KWOK controller against a cluster of ours for as long as the block lasts."""
    assert cluster.run is not None, "KWOK needs a run directory to log to"
    argv = [
        str(tools.ensure("kwok") / "kwok"),
        f"--kubeconfig={cluster.kubeconfig}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--server-address=",
        f"--config={_STAGES}",
        f"--cidr={SIMULATED_PODS}",  # addresses that are nobody's: no simulated pod answers
        "--node-lease-duration-seconds=40",
    ]
    log = cluster.run.logs / "kwok.log"
    controller = spawn(argv, log=log, env={**os.environ, RUN_MARK: str(cluster.run.path)})
    try:
        yield
        # here, not in a test: a dead KWOK explains whatever failed before
        assert controller.poll() is None, f"KWOK ended by itself:\n{tail(log)}"
    finally:
        stop([controller], grace_seconds=5)


class NodeFactory:
    """Makes simulated nodes on a cluster whose KWOK is running, and deletes them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names: list[str] = []

    def __call__(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> str:
        """Create one node, wait until it is Ready if asked, and return its name.

        `allocatable` adds to (or replaces, by key) an ordinary node's cpu, memory and pods, e.g.
        `{"nvidia.com/gpu": "8"}`.
        """
        resources = {**_ORDINARY_NODE, **(allocatable or {})}
        self._names.append(name)
        self._cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": _MANAGED,
                    "labels": {
                        "kubernetes.io/hostname": name,
                        "kubernetes.io/os": "linux",
                        "kubernetes.io/arch": "amd64",
                        **(labels or {}),
                    },
                },
                "status": {"allocatable": resources, "capacity": resources},
            }
        )
        if ready:
            until(lambda: self._is_ready(name), what=f"node {name} Ready", within_seconds=30)
        return name

    def delete_all(self) -> None:
        """Delete the nodes made so far."""
        if self._names:
            self._cluster.kubectl("delete", "node", "--ignore-not-found", *self._names)
        self._names.clear()

    def _is_ready(self, name: str) -> bool:
        conditions = self._cluster.get("node", name)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
