"""PodDisruptionBudget and NetworkPolicy on a real API server, with its disruption controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.client import CommandError
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

TEAM = {
    "namespaceSelector": {"matchLabels": {"team": "a"}},
    "podSelector": {"matchExpressions": [{"key": "role", "operator": "In", "values": ["web"]}]},
}
OFFICE = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}}
OPERATOR = {"podSelector": {"matchLabels": {"app": "operator"}}, "namespaceSelector": {}}


def pods(qwen: Qwen) -> list[str]:
    staying = [pod for pod in qwen.all("pod") if "deletionTimestamp" not in pod["metadata"]]
    return [pod["metadata"]["name"] for pod in staying]


def budget_status(qwen: Qwen) -> tuple[int, int]:
    """Return how many pods the budget is about, and how many may go now."""
    status: dict[str, Any] = qwen.get("pdb", "chat").get("status", {})
    return status.get("expectedPods", 0), status.get("disruptionsAllowed", -1)


def test_a_budget_lets_drains_take_one_of_three_pods_and_the_only_one_at_any_time(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=3)
    until(lambda: budget_status(qwen) == (3, 1), what="its budget", within_seconds=SECONDS)
    qwen.cluster.kubectl("cordon", "plain-0")  # so that nobody takes the place of who goes
    first, second, _ = pods(qwen)
    qwen.evict(first)
    until(lambda: budget_status(qwen) == (3, 0), what="none may go now", within_seconds=SECONDS)
    with pytest.raises(CommandError, match="disruption budget"):
        qwen.evict(second)
    qwen.kubectl("scale", "qwen/chat", "--replicas=1")
    qwen.wait_gone("pdb", "chat")
    until(lambda: len(pods(qwen)) == 1, what="one pod", within_seconds=SECONDS)
    qwen.evict(*pods(qwen))


def test_beside_a_budget_of_the_users_ours_goes_so_that_pods_can_be_evicted(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=2)
    until(lambda: budget_status(qwen) == (2, 1), what="its budget", within_seconds=SECONDS)
    own = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "mine"},
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": "chat"}},
        },
    }
    qwen.cluster.apply(own, namespace=qwen.namespace)
    qwen.wait_gone("pdb", "chat")
    until(
        lambda: qwen.get("pdb", "mine").get("status", {}).get("disruptionsAllowed") == 1,
        what="the user's budget at work",
        within_seconds=SECONDS,
    )
    qwen.evict(pods(qwen)[0])  # with two budgets: "has more than one PodDisruptionBudget"
    qwen.kubectl("delete", "pdb", "mine")
    until(lambda: qwen.get("pdb", "chat"), what="ours again", within_seconds=SECONDS)


def test_a_policy_is_kept_as_the_spec_says_goes_with_it_and_touches_no_pod(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    operator.stop()
    operator.start(QWEN_ENGINE_PEERS=json.dumps([OPERATOR]))
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=2)
    qwen.wait_for("chat", "Available", "Serving")
    assert not qwen.get("networkpolicy", "chat")
    template, names = _template(qwen), sorted(pods(qwen))

    def peers() -> list[Any]:
        rules = qwen.get("networkpolicy", "chat").get("spec", {}).get("ingress", [])
        return [peer for rule in rules for peer in rule["from"]]

    qwen.patch("chat", {"networkPolicy": {}})
    own = [{"podSelector": {}}, OPERATOR]
    until(lambda: peers() == own, what="closed to others", within_seconds=SECONDS)
    qwen.patch("chat", {"networkPolicy": {"from": [TEAM, OFFICE]}})
    until(lambda: peers() == [TEAM, OFFICE, OPERATOR], what="by name", within_seconds=SECONDS)
    spec = qwen.get("networkpolicy", "chat")["spec"]
    assert spec["ingress"][0]["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert spec["policyTypes"] == ["Ingress"]

    def version() -> str:
        found: str = qwen.get("networkpolicy", "chat")["metadata"]["resourceVersion"]
        return found

    until(lambda: budget_status(qwen) == (2, 1), what="its budget", within_seconds=SECONDS)
    assert stays(lambda: (version(), budget_status(qwen)), 5), "written again without need"

    qwen.kubectl("delete", "networkpolicy", "chat")
    until(lambda: peers() == [TEAM, OFFICE, OPERATOR], what="back", within_seconds=SECONDS)
    open_ = [{"op": "add", "path": "/spec/ingress/-", "value": {}}]
    qwen.kubectl("patch", "networkpolicy", "chat", "--type=json", "-p", json.dumps(open_))
    until(
        lambda: len(qwen.get("networkpolicy", "chat")["spec"]["ingress"]) == 1,
        what="somebody's opening closed",
        within_seconds=SECONDS,
    )
    qwen.patch("chat", {"networkPolicy": {"enabled": False}})
    qwen.wait_gone("networkpolicy", "chat")
    assert (_template(qwen), sorted(pods(qwen))) == (template, names)
    qwen.kubectl("delete", "qwen", "chat", "--timeout=10s")
    qwen.wait_gone("pdb", "chat")


def _template(qwen: Qwen) -> Any:
    return qwen.get("deployment", "chat")["spec"]["template"]
