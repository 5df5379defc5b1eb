"""helm install, upgrade and uninstall on a real API server, and what people may do then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.control_plane.qwen import CPU, SECONDS, Qwen

CHART = Path(__file__).parents[2] / "charts" / "qwen-operator"
CRD_NAME = "qwendeployments.qwenoperator.io"


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
