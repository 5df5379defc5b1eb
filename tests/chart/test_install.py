"""helm install, upgrade and uninstall on a real API server, and whether the rights suffice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import CPU, L4_LABELS, SECONDS, Qwen

CHART = Path(__file__).parents[2] / "charts" / "qwen-operator"
CRD_NAME = "qwendeployments.qwenoperator.io"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
CRD = f"crd/{CRD_NAME}"


@pytest.fixture
def release(control_plane: Cluster, namespace: str) -> Iterator[str]:
    """The chart, installed as `op` into a namespace that enforces restricted pods."""
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, enforce)
    control_plane.helm("install", "op", str(CHART), "-n", namespace, "--wait=false")
    yield namespace
    listed = json.loads(control_plane.helm("list", "-n", namespace, "-o", "json"))
    if listed:
        control_plane.helm("uninstall", "op", "-n", namespace)


def test_install_upgrade_and_uninstall(control_plane: Cluster, release: str) -> None:
    control_plane.wait_established(CRD_NAME)
    # nothing runs here, but the pod was admitted under the restricted standard
    until(
        lambda: control_plane.get("pods", "-n", release)["items"],
        what="the operator's pod admitted",
        within_seconds=SECONDS,
    )
    upgrade = ("upgrade", "op", str(CHART), "-n", release, "--set", "logLevel=debug")
    control_plane.helm(*upgrade)
    deployment = control_plane.get("deployment", "op-qwen-operator", "-n", release)
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "QWEN_LOG_LEVEL", "value": "debug"} in env

    qwen = Qwen(control_plane, release)
    qwen.apply("chat", **CPU)
    control_plane.helm("uninstall", "op", "-n", release)
    until(
        lambda: not control_plane.exists("deployment", "op-qwen-operator", "-n", release),
        what="the operator gone",
        within_seconds=SECONDS,
    )
    roles = control_plane.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert f"{release}-op-qwen-operator" not in roles
    assert qwen.get("qwen", "chat")["spec"]["model"]["id"] == "Qwen/Qwen3-0.6B"  # users' data stay


def test_the_charts_rights_are_enough_for_all_that_the_operator_does(
    control_plane: Cluster, release: str, kwok_nodes: NodeFactory, tmp_path: Path
) -> None:
    control_plane.wait_established(CRD_NAME)
    as_chart = _as_service_account(control_plane, release, tmp_path)
    operator = OperatorProcess(as_chart, tmp_path)
    name = "op-qwen-operator-metrics"
    metrics = {"SERVICE": f"{release}/{name}", "OWNER": f"{release}-{name}"}
    port = str(free_port())
    operator.start(
        **{f"QWEN_METRICS_{key}": value for key, value in metrics.items()}, QWEN_METRICS_PORT=port
    )
    try:
        kwok_nodes("l4-0", labels=L4_LABELS, allocatable={"nvidia.com/gpu": "1"})
        qwen = Qwen(control_plane, release)
        qwen.apply("chat", model={"id": "Qwen/Qwen3-8B"})
        qwen.wait_for("chat", "Available", "Serving")
        assert ("Normal", "Serving") in qwen.events("chat")
        qwen.kubectl("scale", "qwen/chat", "--replicas=0")
        qwen.wait_for("chat", "Available", "ScaledToZero")
        qwen.patch("chat", {"autoscaling": {"maxReplicas": 2}})
        until(lambda: qwen.get("hpa", "chat"), what="its HPA", within_seconds=SECONDS)
        qwen.patch("chat", {"autoscaling": {"enabled": False}})
        qwen.wait_gone("hpa", "chat")
        assert control_plane.exists("apiservice", API_SERVICE)
    finally:
        operator.end()
        control_plane.helm("uninstall", "op", "-n", release)
    assert "orbidden" not in operator.log, operator.log
    # an API that is registered and served by nobody would keep namespaces from being deleted
    until(
        lambda: not control_plane.exists("apiservice", API_SERVICE),
        what="the APIService gone with the chart",
        within_seconds=SECONDS,
    )


def test_rights_in_one_namespace_are_enough_to_serve_it_and_no_other(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    narrow = ("--set", f"watchNamespaces={{{namespace}}}")
    control_plane.helm("install", "op", str(CHART), "-n", namespace, *narrow, "--wait=false")
    try:
        control_plane.wait_established(CRD_NAME)
        operator = OperatorProcess(
            _as_service_account(control_plane, namespace, tmp_path), tmp_path
        )
        operator.start(QWEN_NAMESPACES=namespace)
        try:
            qwen = Qwen(control_plane, namespace)
            qwen.apply("chat", **CPU)
            qwen.wait_for("chat", "Available", "Unschedulable")
        finally:
            operator.end()
        assert "orbidden" not in operator.log, operator.log
    finally:
        control_plane.helm("uninstall", "op", "-n", namespace)


def test_people_who_edit_a_namespace_may_serve_models_in_it(
    control_plane: Cluster, release: str
) -> None:
    for role, verb, expected in (("edit", "create", "yes"), ("view", "get", "yes"),
                                 ("view", "create", "no")):  # fmt: skip
        account = f"{role}-er"
        if not control_plane.exists("serviceaccount", account, "-n", release):
            control_plane.kubectl("create", "serviceaccount", account, "-n", release)
            control_plane.kubectl(
                "create", "rolebinding", account, f"--clusterrole={role}",
                f"--serviceaccount={release}:{account}", "-n", release,
            )  # fmt: skip
        until(
            lambda a=account, v=verb, e=expected: _can_i(control_plane, release, a, v) == e,
            what=f"{role} may {verb}: {expected}",
            within_seconds=SECONDS,
        )


def _can_i(cluster: Cluster, namespace: str, account: str, verb: str) -> str:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": "qwenoperator.io",
                "resource": "qwendeployments",
            },
        },
    }
    text = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return "yes" if json.loads(text)["status"]["allowed"] else "no"


def _as_service_account(cluster: Cluster, namespace: str, folder: Path) -> Cluster:
    """Return the cluster as the chart's ServiceAccount sees it."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "op-qwen-operator", "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "service-account.kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster(path)
