"""The operator as a real process against a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.client import Cluster
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CRD, Qwen


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
