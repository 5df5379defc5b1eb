"""The chart's rights: all that the operator needs, and nothing that it does not use."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.rights import Grant, denied, grants_of, operators_calls, unused
from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.engines import Engine, give_address
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import L4_LABELS, SECONDS, Qwen

CHART = Path(__file__).parents[2] / "charts" / "qwen-operator"
CRD_NAME = "qwendeployments.qwenoperator.io"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
METRICS = "op-qwen-operator-metrics"


@pytest.fixture
def no_crd(control_plane: Cluster) -> Iterator[None]:
    """An API server that does not know QwenDeployments yet, and does again for other tests."""
    control_plane.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")
    yield
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    control_plane.wait_established(CRD_NAME)


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
@pytest.mark.usefixtures("no_crd")
def test_the_operator_is_denied_nothing_and_uses_all_that_it_is_granted(
    scope: str,
    control_plane: Cluster,
    namespace: str,
    kwok_nodes: NodeFactory,
    tmp_path: Path,
) -> None:
    values = ("--set", f"watchNamespaces={{{namespace}}}") if scope == "namespaced" else ()
    install = ("install", "op", str(CHART), "-n", namespace, "--skip-crds", "--wait=false")
    control_plane.helm(*install, *values)
    operator = OperatorProcess(_as_service_account(control_plane, namespace, tmp_path), tmp_path)
    served = {"QWEN_NAMESPACES": namespace} if scope == "namespaced" else {}
    try:
        operator.start(**_chart_environment(namespace), **served)
        control_plane.wait_established(CRD_NAME)  # the operator's doing
        kwok_nodes("l4-0", labels=L4_LABELS, allocatable={"nvidia.com/gpu": "2"})
        _do_all_that_there_is(Qwen(control_plane, namespace))
        assert control_plane.exists("apiservice", API_SERVICE)
        grants = grants_of(control_plane, "op", namespace)

        def rest() -> list[Grant]:
            return unused(grants, operators_calls(control_plane, "op", namespace))

        with contextlib.suppress(TimeoutError):
            until(lambda: not rest(), what="every right used", within_seconds=SECONDS)
        assert rest() == []
    finally:
        operator.end()
        control_plane.helm("uninstall", "op", "-n", namespace)
    assert denied(operators_calls(control_plane, "op", namespace)) == []
    assert "orbidden" not in operator.log, operator.log
    # an API that is registered and served by nobody would keep namespaces from being deleted
    until(
        lambda: not control_plane.exists("apiservice", API_SERVICE),
        what="the APIService gone with the chart",
        within_seconds=SECONDS,
    )


def _do_all_that_there_is(qwen: Qwen) -> None:
    """Have every kind of child made, changed and, where that is the operator's work, deleted."""
    qwen.apply("chat", model={"id": "Qwen/Qwen3-8B"})
    qwen.wait_for("chat", "Available", "Serving")
    qwen.wait_events("chat", ("Normal", "Serving"))
    qwen.kubectl("scale", "qwen/chat", "--replicas=0")
    qwen.wait_for("chat", "Available", "ScaledToZero")
    qwen.kubectl("scale", "qwen/chat", "--replicas=1")
    qwen.wait_for("chat", "Available", "Serving")  # told before: the same event, once more
    _use_one_of_two_pods(qwen)
    qwen.patch("chat", {"autoscaling": {"maxReplicas": 2}})
    until(lambda: qwen.get("hpa", "chat"), what="its HPA", within_seconds=SECONDS)
    qwen.patch("chat", {"autoscaling": {"enabled": False}})
    qwen.wait_gone("hpa", "chat")


def _use_one_of_two_pods(qwen: Qwen) -> None:
    """Give the operator a reason to say which pod goes first at a scale-in."""
    qwen.kubectl("scale", "qwen/chat", "--replicas=2")
    until(lambda: len(_running(qwen)) == 2, what="two pods", within_seconds=SECONDS)
    engine = Engine(free=40)
    try:
        give_address(qwen, _running(qwen)[0], engine)
        cost = "controller.kubernetes.io/pod-deletion-cost"
        until(
            lambda: any(cost in p["metadata"].get("annotations", {}) for p in qwen.all("pod")),
            what="a deletion cost",
            within_seconds=SECONDS,
        )
    finally:
        engine.close()


def _running(qwen: Qwen) -> list[str]:
    pods = [pod for pod in qwen.all("pod") if pod["status"].get("podIP")]
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _chart_environment(namespace: str) -> dict[str, str]:
    """Return what the chart's Deployment sets, as far as it leads to requests."""
    return {
        "QWEN_METRICS_SERVICE": f"{namespace}/{METRICS}",
        "QWEN_METRICS_OWNER": f"{namespace}-{METRICS}",
        "QWEN_METRICS_PORT": str(free_port()),
        "QWEN_INSTALL_CRD": "true",
    }


def _as_service_account(cluster: Cluster, namespace: str, folder: Path) -> Cluster:
    """Return the cluster as the chart's ServiceAccount sees it."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "op-qwen-operator", "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "service-account.kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster(path)
