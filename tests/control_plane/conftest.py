"""The operator as a real process against a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.control_plane.fleet import Fleet
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.qwen import CRD, Qwen

API_SERVICE = "v1beta1.external.metrics.k8s.io"


@pytest.fixture(scope="session")
def served(control_plane: Cluster) -> Cluster:
    """The control plane with the CRD installed and served."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRD))
    control_plane.wait_established("qwendeployments.qwenoperator.io")
    return control_plane


@pytest.fixture
def qwen(served: Cluster, namespace: str) -> Qwen:
    """QwenDeployments of this test's own namespace."""
    return Qwen(served, namespace)


@pytest.fixture(scope="module")
def _operator(
    served: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    process = OperatorProcess(served, tmp_path_factory.mktemp("operator"))
    yield process
    process.end()


@pytest.fixture
def operator(_operator: OperatorProcess) -> OperatorProcess:
    """The module's operator, running, whatever the test before did to it."""
    if not _operator.is_running:
        _operator.start()
    return _operator


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
        QWEN_METRICS_SERVICE=f"{namespace}/qwen-metrics:{port}",
        QWEN_METRICS_PORT=str(port),
        QWEN_FIGURES_SERVICE=f"{namespace}/figures",
        QWEN_FIGURES_PORT=str(process.figures_port),
    )
    yield process
    process.end()
    served.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")


@pytest.fixture
def fleet(qwen: Qwen) -> Iterator[Fleet]:
    """The engines of `chat`."""
    made = Fleet(qwen, "chat")
    yield made
    made.close()
