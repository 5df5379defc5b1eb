"""The HorizontalPodAutoscaler of a real controller manager reads the operator's own metrics API."""

from __future__ import annotations

import json

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.fleet import Fleet, is_scaling_active
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

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


def test_replicas_follow_the_blocks_and_stay_when_nothing_is_known(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **SCALED)
    qwen.wait_for("chat", "Available", "Serving")
    fleet.fill(free=98)  # with 90 of 100 free in each, a second replica stays as head-room
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
    assert is_scaling_active(qwen) is True

    fleet.say(b"<html>")
    until(lambda: is_scaling_active(qwen) is False, what="no metric", within_seconds=SECONDS)
    assert stays(fleet.replicas, 3)
    assert fleet.replicas() == 3
    qwen.wait_for("chat", "Autoscaling", "NothingKnown")

    qwen.patch("chat", {"autoscaling": {"enabled": False}})
    qwen.wait_gone("hpa", "chat")
    assert qwen.get("qwen", "chat")["spec"]["replicas"] == 3
    until(lambda: qwen.condition("chat", "Autoscaling") == {}, what="quiet", within_seconds=SECONDS)
