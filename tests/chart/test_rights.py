"""The chart's rights: all that the operator needs, and nothing that it does not use."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qwen_operator.activation import build_slice
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
KINDS_OF_OTHERS = (
    ("scaledobjects.keda.sh", "ScaledObject", "v1alpha1"),
    ("inferencepools.inference.networking.k8s.io", "InferencePool", "v1"),
)
SCALED_OBJECTS, POOLS = (crd for crd, _, _ in KINDS_OF_OTHERS)
METRICS = "op-qwen-operator-metrics"


@pytest.fixture
def no_crd(control_plane: Cluster) -> Iterator[None]:
    """An API server that does not know QwenDeployments yet, and does again for other tests."""
    control_plane.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")
    yield
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    control_plane.wait_established(CRD_NAME)


@pytest.fixture
def kinds_of_others(control_plane: Cluster) -> Iterator[None]:
    """KEDA's and the Gateway API's kinds without those: enough to see what the operator writes."""
    for crd, kind, version in KINDS_OF_OTHERS:
        control_plane.apply(_crd(crd, kind, version))
        control_plane.wait_established(crd)
    yield
    control_plane.kubectl("delete", "crd", *(crd for crd, _, _ in KINDS_OF_OTHERS))


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine half of whose blocks are used."""
    made = Engine(free=50)
    yield made
    made.close()


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
@pytest.mark.usefixtures("no_crd", "kinds_of_others")
def test_the_operator_is_denied_nothing_and_uses_all_that_it_is_granted(
    scope: str,
    control_plane: Cluster,
    namespace: str,
    kwok_nodes: NodeFactory,
    engine: Engine,
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
        _do_all_that_there_is(Qwen(control_plane, namespace), engine)
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


def _do_all_that_there_is(qwen: Qwen, engine: Engine) -> None:
    """Have every kind of child made, changed and, where that is the operator's work, deleted."""
    qwen.apply("chat", model={"id": "Qwen/Qwen3-8B"})
    qwen.wait_for("chat", "Available", "Serving")
    qwen.wait_events("chat", ("Normal", "Serving"))
    qwen.kubectl("scale", "qwen/chat", "--replicas=2")  # of one pod nobody asks which goes first
    until(lambda: len(_pods(qwen)) == 2, what="two pods", within_seconds=SECONDS)
    _answer(qwen, engine)
    until(lambda: _costs(qwen), what="a deletion cost", within_seconds=SECONDS)
    until(lambda: qwen.get("pdb", "chat"), what="its budget", within_seconds=SECONDS)
    qwen.patch("chat", {"networkPolicy": {}})
    until(lambda: qwen.get("networkpolicy", "chat"), what="its policy", within_seconds=SECONDS)
    qwen.patch("chat", {"networkPolicy": None})
    qwen.wait_gone("networkpolicy", "chat")
    qwen.kubectl("scale", "qwen/chat", "--replicas=0")
    qwen.wait_for("chat", "Available", "ScaledToZero")
    qwen.kubectl("scale", "qwen/chat", "--replicas=1")
    qwen.wait_for("chat", "Available", "Serving")  # told before: the same event, once more
    _answer(qwen, engine)
    qwen.patch("chat", {"autoscaling": {"maxReplicas": 2, "provider": "KEDA"}})
    until(lambda: _has(qwen, SCALED_OBJECTS), what="its ScaledObject", within_seconds=SECONDS)
    until(lambda: _has(qwen, POOLS), what="its InferencePool", within_seconds=SECONDS)
    qwen.patch("chat", {"service": {"inferencePool": {"enabled": False}}})
    qwen.patch("chat", {"autoscaling": {"provider": "BuiltIn", "minReplicas": 0}})
    until(lambda: qwen.get("hpa", "chat"), what="its HPA", within_seconds=SECONDS)
    for kinds in (SCALED_OBJECTS, POOLS):
        until(lambda k=kinds: not _has(qwen, k), what=f"no {kinds}", within_seconds=SECONDS)
    # no Service leads to this operator, so what the HPA asks finds nothing
    qwen.wait_for("chat", "MetricsContract", "NoSeries")
    _wake(qwen)
    qwen.patch("chat", {"autoscaling": {"enabled": False}})
    qwen.wait_gone("hpa", "chat")


def _answer(qwen: Qwen, engine: Engine) -> None:
    """Put the engine where a pod of `chat` is."""
    until(lambda: _pods(qwen), what="a pod", within_seconds=SECONDS)
    give_address(qwen, _pods(qwen)[0], engine)


def _pods(qwen: Qwen) -> list[str]:
    """Return the pods of `chat` that have an address and stay."""
    found = [pod for pod in qwen.all("pod") if pod["status"].get("podIP")]
    names = [p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]]
    return [name for name in names if name.startswith("chat-")]


def _wake(qwen: Qwen) -> None:
    """Scale to zero, and have an activator say that requests wait."""
    qwen.kubectl("scale", "qwen/chat", "--replicas=0")
    owner = qwen.get("qwen", "chat")["metadata"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    held = build_slice(owner, address="198.18.0.9", port=9, is_routed=False, waiting_at=now)
    qwen.cluster.apply(held)
    until(
        lambda: qwen.get("qwen", "chat")["spec"]["replicas"] == 1,
        what="woken",
        within_seconds=SECONDS,
    )


def _costs(qwen: Qwen) -> bool:
    notes = (pod["metadata"].get("annotations", {}) for pod in qwen.all("pod"))
    return any("controller.kubernetes.io/pod-deletion-cost" in found for found in notes)


def _has(qwen: Qwen, kinds: str) -> bool:
    return qwen.cluster.exists(kinds, "chat", "-n", qwen.namespace)


def _crd(name: str, kind: str, version: str) -> dict[str, object]:
    plural, _, group = name.partition(".")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # the name of a group of Kubernetes' own asks for it
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind},
            "scope": "Namespaced",
            "versions": [{"name": version, **served}],
        },
    }


def _chart_environment(namespace: str) -> dict[str, str]:
    """Return what the chart's Deployment sets, as far as it leads to requests."""
    return {
        "QWEN_METRICS_SERVICE": f"{namespace}/{METRICS}",
        "QWEN_METRICS_OWNER": f"{namespace}-{METRICS}",
        "QWEN_METRICS_PORT": str(free_port()),
        "QWEN_INSTALL_CRD": "true",
        "QWEN_ACTIVATOR": "true",
        "QWEN_FIGURES_SERVICE": f"{namespace}/figures",
        "QWEN_FIGURES_PORT": str(free_port()),
    }


def _as_service_account(cluster: Cluster, namespace: str, folder: Path) -> Cluster:
    """Return the cluster as the chart's ServiceAccount sees it."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "op-qwen-operator", "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "service-account.kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster(path)
