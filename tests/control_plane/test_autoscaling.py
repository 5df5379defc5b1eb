"""The HorizontalPodAutoscaler of a real controller manager reads the operator's own metrics API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.engines import Engine, give_address
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

API_SERVICE = "v1beta1.external.metrics.k8s.io"
FAST = {
    "scaleDown": {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}],
    }
}
SCALED = {
    **CPU,
    "replicas": 3,
    "autoscaling": {"maxReplicas": 3, "behavior": FAST},
}


@pytest.fixture
def metrics_operator(served: Cluster, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator whose metrics API the API server reaches through a Service."""
    port = free_port()
    # no pod and no kube-proxy here: a Service that is only another name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "qwen-metrics"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    served.apply(service, namespace=namespace)
    process = OperatorProcess(served, tmp_path)
    process.start(
        QWEN_METRICS_SERVICE=f"{namespace}/qwen-metrics:{port}", QWEN_METRICS_PORT=str(port)
    )
    yield process
    process.end()
    served.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")


class Fleet:
    """The engines of a QwenDeployment's pods: every pod gets one, equally full."""

    def __init__(self, qwen: Qwen, name: str) -> None:
        self._qwen, self._name = qwen, name
        self._engines: dict[str, Engine] = {}
        self._free = 90
        self._raw: bytes | None = None

    def replicas(self) -> int:
        """Give new pods their engines, and return how many are wanted."""
        for pod in self._qwen.all("pod"):
            name = pod["metadata"]["name"]
            if name not in self._engines and pod["status"].get("podIP"):
                self._engines[name] = Engine(self._free)
                self._engines[name].raw = self._raw
                give_address(self._qwen, name, self._engines[name])
        count: int = self._qwen.get("deployment", self._name)["spec"]["replicas"]
        return count

    def fill(self, free: int) -> None:
        """Leave every engine so many of 100 blocks."""
        self._free = free
        for engine in self._engines.values():
            engine.free = free

    def break_all(self) -> None:
        """Have every engine talk nonsense."""
        self._raw = b"<html>"
        for engine in self._engines.values():
            engine.raw = self._raw

    def close(self) -> None:
        """Stop all engines."""
        for engine in self._engines.values():
            engine.close()


@pytest.fixture
def fleet(qwen: Qwen) -> Iterator[Fleet]:
    """The engines of `chat`."""
    made = Fleet(qwen, "chat")
    yield made
    made.close()


def test_replicas_follow_the_blocks_and_stay_when_nothing_is_known(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **SCALED)
    qwen.wait_for("chat", "Available", "Serving")
    until(lambda: fleet.replicas() == 1, what="scaled in", within_seconds=SECONDS)
    qwen.wait_for("chat", "Autoscaling", "Following")
    root = "/apis/external.metrics.k8s.io/v1beta1"
    path = f"{root}/namespaces/{qwen.namespace}/qwen_replicas_needed"
    value = json.loads(qwen.kubectl("get", "--raw", path))["items"][0]
    assert (value["value"], value["metricLabels"]) == ("1", {"qwenoperator.io/deployment": "chat"})

    fleet.fill(free=2)
    until(lambda: fleet.replicas() == 3, what="scaled out", within_seconds=SECONDS)
    assert qwen.status("chat")["autoscaling"]["wantedReplicas"] >= 2
    qwen.wait_events("chat", ("Normal", "ReplicasWanted"))
    assert _is_active(qwen) is True

    fleet.break_all()
    until(lambda: _is_active(qwen) is False, what="no metric", within_seconds=SECONDS)
    assert stays(fleet.replicas, 3)
    assert fleet.replicas() == 3
    qwen.wait_for("chat", "Autoscaling", "NothingKnown")

    qwen.patch("chat", {"autoscaling": {"enabled": False}})
    qwen.wait_gone("hpa", "chat")
    assert qwen.get("qwen", "chat")["spec"]["replicas"] == 3
    until(lambda: qwen.condition("chat", "Autoscaling") == {}, what="quiet", within_seconds=SECONDS)


def _is_active(qwen: Qwen) -> bool | None:
    conditions: list[dict[str, Any]] = (
        qwen.get("hpa", "chat").get("status", {}).get("conditions", [])
    )
    return next((c["status"] == "True" for c in conditions if c["type"] == "ScalingActive"), None)
