"""What users do to a QwenDeployment, and what happens to the operator meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

CHILDREN = ("deployment", "service", "serviceaccount")


@pytest.fixture
def node(kwok_nodes: NodeFactory) -> str:
    """A node without GPUs, on which pods are ready at once."""
    return kwok_nodes("plain-0")


def test_scaling_the_resource_scales_the_pods_and_restarts_none(
    qwen: Qwen, operator: OperatorProcess, node: str
) -> None:
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    [first] = [pod["metadata"]["uid"] for pod in qwen.all("pod")]

    qwen.kubectl("scale", "qwen/chat", "--replicas=3")
    until(lambda: qwen.status("chat").get("ready") == "3/3", what="3/3", within_seconds=SECONDS)
    assert first in [pod["metadata"]["uid"] for pod in qwen.all("pod")]
    scale = json.loads(qwen.kubectl("get", "qwen/chat", "--subresource=scale", "-o", "json"))
    assert scale["spec"]["replicas"] == scale["status"]["replicas"] == 3
    assert scale["status"]["selector"] == "qwenoperator.io/deployment=chat"

    qwen.kubectl("scale", "qwen/chat", "--replicas=0")
    qwen.wait_for("chat", "Available", "ScaledToZero")
    until(lambda: qwen.all("pod") == [], what="no pods", within_seconds=SECONDS)


def test_another_model_replaces_the_pods(qwen: Qwen, operator: OperatorProcess, node: str) -> None:
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    [before] = [pod["metadata"]["uid"] for pod in qwen.all("pod")]

    qwen.patch("chat", {"model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"}})
    until(
        lambda: (
            qwen.status("chat")["observedGeneration"] == 2
            and qwen.condition("chat", "Progressing").get("reason") == "Settled"
            and [pod["metadata"]["uid"] for pod in qwen.all("pod")] != [before]
        ),
        what="a new pod for the new model",
        within_seconds=SECONDS,
    )
    [pod] = qwen.all("pod")
    assert pod["spec"]["containers"][0]["args"][1] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert qwen.status("chat")["plan"]["model"]["id"] == "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.mark.parametrize("operator_is_up", [True, False])
def test_deleting_leaves_nothing_behind_with_the_operator_up_or_down(
    qwen: Qwen, operator: OperatorProcess, node: str, operator_is_up: bool
) -> None:
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    assert "finalizers" not in qwen.get("qwen", "chat")["metadata"]
    if not operator_is_up:
        operator.kill()
    qwen.kubectl("delete", "qwen", "chat", "--timeout=10s")
    for kind in CHILDREN:
        qwen.wait_gone(kind, "chat")
    until(lambda: qwen.all("pod") == [], what="no pods", within_seconds=SECONDS)


def test_a_namespace_goes_although_the_operator_does_not_run(
    qwen: Qwen, operator: OperatorProcess, node: str
) -> None:
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    operator.kill()
    qwen.cluster.kubectl("delete", "namespace", qwen.namespace, "--timeout=50s")
    qwen.cluster.kubectl("create", "namespace", qwen.namespace)  # for the fixture to delete


def autoscaler(name: str, api_version: str, kind: str) -> dict[str, Any]:
    """An autoscaler of 3 to 4 replicas; it keeps to its bounds even without metrics."""
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "minReplicas": 3,
            "maxReplicas": 4,
            "metrics": [{"type": "Resource", "resource": metric}],
        },
    }


def test_an_autoscaler_is_obeyed_on_the_resource_and_not_fought_on_the_deployment(
    qwen: Qwen, operator: OperatorProcess, node: str
) -> None:
    qwen.apply("right", **CPU)
    qwen.apply("wrong", **CPU)
    until(lambda: qwen.get("deployment", "wrong"), what="deployment", within_seconds=SECONDS)
    qwen.cluster.apply(
        autoscaler("right", "qwenoperator.io/v1alpha1", "QwenDeployment"),
        autoscaler("wrong", "apps/v1", "Deployment"),
        namespace=qwen.namespace,
    )
    until(
        lambda: [qwen.status(name).get("ready") for name in ("right", "wrong")] == ["3/3"] * 2,
        what="as many as the autoscalers say",
        within_seconds=60,
    )
    qwen.apply("right", **CPU)  # a manifest without replicas leaves them to the autoscaler
    assert qwen.get("qwen", "right")["spec"]["replicas"] == 3
    assert "target" in qwen.wait_for("wrong", "Progressing", "ScaledByAutoscaler")["message"]
    qwen.kubectl("annotate", "qwen", "wrong", "look=again")
    assert stays(lambda: qwen.get("deployment", "wrong")["spec"]["replicas"], 4)

    qwen.kubectl("delete", "hpa", "wrong")
    qwen.kubectl("scale", "qwen/wrong", "--replicas=2")
    until(
        lambda: qwen.status("wrong").get("ready") == "2/2",
        what="the user obeyed again",
        within_seconds=SECONDS,
    )


def test_a_namesake_made_right_after_a_deletion_gets_children_of_its_own(
    qwen: Qwen, operator: OperatorProcess, node: str
) -> None:
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    qwen.kubectl("delete", "qwen", "chat")
    qwen.apply("chat", **CPU)
    uid = qwen.get("qwen", "chat")["metadata"]["uid"]

    def owner(kind: str) -> str | None:
        references = qwen.get(kind, "chat").get("metadata", {}).get("ownerReferences", [{}])
        found: str | None = references[0].get("uid")
        return found

    until(
        lambda: [owner(kind) for kind in CHILDREN] == [uid] * 3,
        what="children of the new owner",
        within_seconds=SECONDS,
    )
    qwen.wait_for("chat", "Available", "Serving")
    assert ("Warning", "NameTaken") not in qwen.events("chat")


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_that_somebody_deletes_comes_back(
    qwen: Qwen, operator: OperatorProcess, kind: str
) -> None:
    qwen.apply("chat", **CPU)
    until(lambda: qwen.get("deployment", "chat"), what="deployment", within_seconds=SECONDS)
    uid = qwen.get(kind, "chat")["metadata"]["uid"]
    qwen.kubectl("delete", kind, "chat")
    until(
        lambda: qwen.get(kind, "chat").get("metadata", {}).get("uid", uid) != uid,
        what=f"another {kind}",
        within_seconds=SECONDS,
    )


def test_an_edit_of_the_deployment_is_taken_back(qwen: Qwen, operator: OperatorProcess) -> None:
    qwen.apply("chat", **CPU)
    until(lambda: qwen.get("deployment", "chat"), what="deployment", within_seconds=SECONDS)
    qwen.kubectl("set", "image", "deployment/chat", "engine=evil:1")
    qwen.kubectl("scale", "deployment/chat", "--replicas=4")

    def now() -> tuple[str, int]:
        spec = qwen.get("deployment", "chat")["spec"]
        return spec["template"]["spec"]["containers"][0]["image"], spec["replicas"]

    until(lambda: now() == ("qwen-engine:test", 1), what="the edit undone", within_seconds=SECONDS)


def test_a_service_of_the_same_name_is_not_taken_over(
    qwen: Qwen, operator: OperatorProcess
) -> None:
    qwen.kubectl("create", "service", "clusterip", "chat", "--tcp=80")
    qwen.apply("chat", **CPU)
    message = qwen.wait_for("chat", "Degraded", "NameTaken")["message"]
    assert "Service chat exists" in message
    assert "ownerReferences" not in qwen.get("service", "chat")["metadata"]
    assert qwen.all("deployment") == []

    qwen.kubectl("delete", "service", "chat")
    qwen.wait_for("chat", "Available", "Unschedulable")
    assert qwen.get("service", "chat")["spec"]["ports"][0]["port"] == 8000


def test_an_operator_killed_in_the_midst_of_its_work_finishes_it_afterwards(
    qwen: Qwen, operator: OperatorProcess, node: str
) -> None:
    for number in range(8):
        qwen.apply(f"chat-{number}", **CPU)
    until(lambda: [a for a in qwen.all("serviceaccount") if a["metadata"]["name"] != "default"],
          what="the first child", within_seconds=SECONDS, every_seconds=0.02)  # fmt: skip
    operator.kill()
    operator.start()
    for number in range(8):
        qwen.wait_for(f"chat-{number}", "Available", "Serving")
    assert len(qwen.all("pod")) == 8
