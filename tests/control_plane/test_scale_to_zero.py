"""From one replica to none and back, KEDA's object, and /scale, on a real API server."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.activator_process import ADDRESS, ActivatorProcess
from tests.control_plane.engines import Engine, give_address
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

KEDA_CRD = "scaledobjects.keda.sh"
FIGURES = "place/figures:8080"


@pytest.fixture
def zero_operator(served: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that counts on an activator, and tells KEDA figures."""
    process = OperatorProcess(served, tmp_path)
    port = str(free_port())
    process.start(QWEN_ACTIVATOR="true", QWEN_FIGURES_SERVICE=FIGURES, QWEN_FIGURES_PORT=port)
    yield process
    process.end()


@pytest.fixture
def activator(served: Cluster, tmp_path: Path) -> Iterator[ActivatorProcess]:
    """The activator, running."""
    process = ActivatorProcess(served, tmp_path)
    yield process
    process.end()


@pytest.fixture
def idle_engine() -> Iterator[Engine]:
    """An engine that nobody asks anything."""
    engine = Engine(free=100)
    yield engine
    engine.close()


def replicas(qwen: Qwen) -> int:
    count: int = qwen.get("qwen", "chat")["spec"]["replicas"]
    return count


def route(qwen: Qwen) -> tuple[list[str], int]:
    """Where the activator's slice leads: addresses and port; ([], 0) before there is one."""
    found = qwen.get("endpointslice", "chat-activator")
    addresses = [a for e in found.get("endpoints") or () for a in e["addresses"]]
    return addresses, found["ports"][0]["port"] if found else 0


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_an_idle_model_goes_and_a_held_request_brings_it_back(
    qwen: Qwen,
    zero_operator: OperatorProcess,
    activator: ActivatorProcess,
    kwok_nodes: NodeFactory,
    idle_engine: Engine,
) -> None:
    kwok_nodes("plain-0")
    hold = {"requests": 1, "seconds": 15}
    scaling = {"minReplicas": 0, "maxReplicas": 3, "idleSeconds": 5, "hold": hold}
    qwen.apply("chat", **CPU, autoscaling=scaling)
    qwen.wait_for("chat", "Available", "Serving")
    until(lambda: route(qwen)[1], what="the activator's slice", within_seconds=SECONDS)
    until(lambda: route(qwen)[0] == [], what="left to its pods", within_seconds=SECONDS)
    [pod] = qwen.all("pod")
    give_address(qwen, pod["metadata"]["name"], idle_engine)
    until(lambda: replicas(qwen) == 0, what="gone to zero", within_seconds=SECONDS)
    until(lambda: route(qwen)[0] == [ADDRESS], what="led to the activator", within_seconds=SECONDS)
    qwen.wait_events("chat", ("Normal", "ScaledToZero"))

    port = route(qwen)[1]
    status, models = ask(port, "/v1/models")
    assert (status, models["data"][0]["id"]) == (200, "Qwen/Qwen3-0.6B")
    assert ask(port, "/metrics")[0] == 503
    assert stays(lambda: replicas(qwen), 3)

    def hold_on() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody answers for a simulated pod
            ask(port, "/v1/completions", b"{}")

    threading.Thread(target=hold_on, daemon=True).start()
    until(lambda: replicas(qwen) == 1, what="a replica for who waits", within_seconds=SECONDS)
    until(lambda: route(qwen)[0] == [], what="left to the new pod", within_seconds=SECONDS)
    qwen.wait_events("chat", ("Normal", "Activated"))
    assert "Traceback" not in activator.log


def test_a_request_too_many_is_refused_in_openais_form_until_a_pod_is_there(
    qwen: Qwen, zero_operator: OperatorProcess, activator: ActivatorProcess
) -> None:
    hold = {"requests": 1, "seconds": 2}
    scaling = {"minReplicas": 0, "maxReplicas": 1, "hold": hold}
    qwen.apply("chat", **CPU, replicas=0, autoscaling=scaling)  # and no node for any pod
    until(lambda: route(qwen)[0], what="led to the activator", within_seconds=SECONDS)
    port = route(qwen)[1]
    answers: list[tuple[int, Any]] = []
    asked = [
        threading.Thread(target=lambda: answers.append(ask(port, "/v1/completions", b"{}")))
        for _ in range(2)
    ]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join(SECONDS)
    assert [status for status, _ in answers] == [503, 503]
    assert {body["error"]["code"] for _, body in answers} == {"queue_full", "not_ready"}
    until(lambda: replicas(qwen) == 1, what="a replica that waits", within_seconds=SECONDS)


@pytest.fixture
def keda_crd(served: Cluster) -> Iterator[dict[str, Any]]:
    """The definition of ScaledObjects, to be applied; KEDA itself is no part of this layer."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True,
               "schema": {"openAPIV3Schema": anything}}  # fmt: skip
    names = {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject",
             "listKind": "ScaledObjectList"}  # fmt: skip
    yield {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": KEDA_CRD},
        "spec": {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    served.kubectl("delete", "crd", KEDA_CRD, "--ignore-not-found")


def test_keda_is_waited_for_then_given_its_object_which_goes_with_the_provider(
    qwen: Qwen, zero_operator: OperatorProcess, kwok_nodes: NodeFactory, keda_crd: dict[str, Any]
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, autoscaling={"maxReplicas": 3})
    until(lambda: qwen.get("hpa", "chat"), what="an HPA", within_seconds=SECONDS)
    qwen.patch("chat", {"autoscaling": {"provider": "KEDA"}})
    assert "install KEDA" in qwen.wait_for("chat", "Autoscaling", "KedaMissing")["message"]
    qwen.wait_gone("hpa", "chat")

    qwen.cluster.apply(keda_crd)
    qwen.cluster.wait_established(KEDA_CRD)
    found = until(
        lambda: qwen.get("scaledobject", "chat"), what="a ScaledObject", within_seconds=60
    )
    url = found["spec"]["triggers"][0]["metadata"]["url"]
    path = f"/v1/namespaces/{qwen.namespace}/qwendeployments/chat"
    assert url == f"http://figures.place.svc:8080{path}"
    qwen.patch("chat", {"autoscaling": {"provider": "BuiltIn"}})
    qwen.wait_gone("scaledobject", "chat")
    until(lambda: qwen.get("hpa", "chat"), what="an HPA again", within_seconds=SECONDS)


def test_scale_tells_who_the_pods_are_and_takes_a_number_that_the_operator_keeps(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    path = f"/apis/qwenoperator.io/v1alpha1/namespaces/{qwen.namespace}/qwendeployments/chat/scale"

    def scale() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(qwen.kubectl("get", "--raw", path))
        return found

    qwen.kubectl("scale", "qwen/chat", "--replicas=2", "--current-replicas=1")
    until(
        lambda: scale()["status"].get("replicas") == 2, what="two replicas", within_seconds=SECONDS
    )
    # with this selector an HPA counts ready pods, and a VPA finds those whose use it measures
    selector = scale()["status"]["selector"]
    named = set(qwen.kubectl("get", "pods", "-l", selector, "-o", "name").split())
    assert named == {f"pod/{pod['metadata']['name']}" for pod in qwen.all("pod")}
    assert len(named) == 2
    qwen.apply("chat", **CPU)  # a manifest without replicas leaves them
    assert stays(lambda: (scale()["spec"]["replicas"], len(qwen.all("pod"))), 4)
    owners = {
        entry["manager"]
        for entry in qwen.get("qwen", "chat")["metadata"].get("managedFields", ())
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    }
    assert "qwen-operator" not in owners
