"""What breaks beside the autoscaler: it holds, says so, and goes on when the fault is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.conftest import API_SERVICE
from tests.control_plane.fleet import Fleet, is_scaling_active
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays
from tests.control_plane.test_autoscaling import SCALED

GONE_SECONDS = 150.0  # the garbage collector waits 40 s before it believes that a node is gone


def _served(qwen: Qwen, fleet: Fleet, *, free: int) -> None:
    """Serve `chat` with three full-size pods, so many blocks of each free."""
    fleet.fill(free)
    qwen.apply("chat", **SCALED)
    qwen.wait_for("chat", "Available", "Serving")
    until(lambda: fleet.replicas() and is_scaling_active(qwen), what="HPA", within_seconds=SECONDS)


def _until_replicas(fleet: Fleet, count: int) -> None:
    until(lambda: fleet.replicas() == count, what=f"{count} replicas", within_seconds=SECONDS)


def test_without_its_operator_an_hpa_holds_and_a_scale_up_that_was_cut_short_is_finished(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    _served(qwen, fleet, free=98)
    _until_replicas(fleet, 1)

    metrics_operator.kill()
    fleet.fill(free=2)
    until(lambda: is_scaling_active(qwen) is False, what="no figure", within_seconds=SECONDS)
    assert stays(fleet.replicas, 3)
    assert qwen.get("qwen", "chat")["spec"]["replicas"] == 1

    metrics_operator.start()
    begun = time.monotonic()
    until(lambda: is_scaling_active(qwen), what="a figure", within_seconds=SECONDS)
    print(f"the HPA followed again {time.monotonic() - begun:.1f} s after the operator was back")
    until(
        lambda: qwen.get("qwen", "chat")["spec"]["replicas"] > 1,
        what="a scale-up",
        within_seconds=SECONDS,
    )
    metrics_operator.kill()
    metrics_operator.start()
    _until_replicas(fleet, 3)
    assert stays(fleet.replicas, 3)


def test_while_an_engine_is_silent_nothing_is_scaled_in(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    _served(qwen, fleet, free=20)
    until(lambda: fleet.replicas() and len(fleet.engines) == 3, what="pods", within_seconds=SECONDS)
    silent = next(iter(fleet.engines.values()))
    silent.answers.clear()
    fleet.fill(free=98)

    def reason() -> str | None:
        found: str | None = qwen.status("chat").get("autoscaling", {}).get("reason")
        return found

    until(lambda: reason() == "PodsSilent", what="PodsSilent", within_seconds=SECONDS)
    assert stays(fleet.replicas, 3)
    assert fleet.replicas() == 3
    assert metrics_operator.log.count("is not used: no answer in 2 s") == 1, "told once"
    silent.answers.set()
    _until_replicas(fleet, 1)


def test_an_api_server_that_is_away_for_half_a_minute_costs_time_and_nothing_else(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    _served(qwen, fleet, free=98)
    _until_replicas(fleet, 1)
    with _stopped(qwen.cluster):
        time.sleep(30)
    assert metrics_operator.is_running
    # whichever of its loops was the first to notice
    words = ("the API does not answer", "PATCH", "TimeoutError")
    assert any(word in metrics_operator.log for word in words), metrics_operator.log
    fleet.fill(free=2)
    until(lambda: fleet.replicas() == 3, what="scaled out", within_seconds=2 * SECONDS)


@contextmanager
def _stopped(cluster: Cluster) -> Iterator[None]:
    """Hold the API server of this very cluster still."""
    assert cluster.run is not None
    [pid] = [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and _is_api_server(process, str(cluster.run.certificates))
    ]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_api_server(process: Path, certificates: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False  # it has just ended
    return words[0].endswith("/kube-apiserver") and f"--cert-dir={certificates}" in words


def test_an_evicted_pod_and_those_of_a_lost_node_are_replaced(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("plain-0")
    kwok_nodes("plain-1")
    qwen.apply("chat", **CPU, replicas=4)
    qwen.wait_for("chat", "Progressing", "Settled")
    lost = _nodes_of(qwen)[-1]
    evicted = next(pod["metadata"]["name"] for pod in qwen.all("pod"))
    qwen.evict(evicted)
    until(
        lambda: evicted not in _names_of(qwen) and len(_names_of(qwen)) == 4,
        what="another pod",
        within_seconds=SECONDS,
    )
    qwen.cluster.kubectl("delete", "node", lost)
    until(
        lambda: len(_nodes_of(qwen)) == 4 and lost not in _nodes_of(qwen),
        what=f"four pods, none on {lost}",
        within_seconds=GONE_SECONDS,
    )
    until(lambda: qwen.status("chat")["ready"] == "4/4", what="4/4", within_seconds=SECONDS)
    qwen.wait_for("chat", "Progressing", "Settled")
    assert qwen.condition("chat", "Degraded")["status"] == "False"
    assert operator.is_running


def _pods(qwen: Qwen) -> list[dict[str, Any]]:
    return [pod for pod in qwen.all("pod") if "deletionTimestamp" not in pod["metadata"]]


def _names_of(qwen: Qwen) -> list[str]:
    return [pod["metadata"]["name"] for pod in _pods(qwen)]


def _nodes_of(qwen: Qwen) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in _pods(qwen))


def test_another_adapters_metrics_api_is_left_alone_and_taken_when_that_is_gone(
    qwen: Qwen, served: Cluster, kwok_nodes: NodeFactory, tmp_path: Path
) -> None:
    foreign = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API_SERVICE},
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 7, "versionPriority": 7,
            "service": {"namespace": qwen.namespace, "name": "another-adapter"},
        },
    }  # fmt: skip
    served.apply(foreign)
    operator = OperatorProcess(served, tmp_path)
    port = str(free_port())
    try:
        operator.start(
            QWEN_METRICS_SERVICE=f"{qwen.namespace}/qwen-metrics:{port}", QWEN_METRICS_PORT=port
        )
        kwok_nodes("plain-0")
        qwen.apply("chat", **SCALED)
        qwen.wait_for("chat", "Autoscaling", "MetricsApiTaken")
        spec = served.get("apiservice", API_SERVICE)["spec"]
        assert (spec["service"]["name"], spec["versionPriority"]) == ("another-adapter", 7)
        served.kubectl("delete", "apiservice", API_SERVICE)

        def owner() -> str | None:
            if not served.exists("apiservice", API_SERVICE):
                return None
            name: str = served.get("apiservice", API_SERVICE)["spec"]["service"]["name"]
            return name

        until(lambda: owner() == "qwen-metrics", what="its own", within_seconds=SECONDS)
    finally:
        operator.end()
        served.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")
