"""The product on a real node: the chart installed, and one model served for all tests to use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.client import Cluster
from tests.cluster.volumes import offer_folder
from tests.e2e.release import Release
from tests.e2e.served import Served
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import build_tiny

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Release:
    """The chart, installed with the images of this clone."""
    release = Release(cluster)
    release.install()
    return release


@pytest.fixture
def to_zero(release: Release) -> Iterator[Release]:
    """The chart with its activator, for the length of a test."""
    release.install("--set", "activator.enabled=true")
    yield release
    release.install()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of these tests: `smollm2` and `tiny`."""
    folder = build_smollm2().parent
    build_tiny("qwen3-tied")
    return folder


@pytest.fixture
def serve(
    cluster: Cluster, release: Release, models: Path, namespace: str
) -> Callable[..., Served]:
    """A factory that applies a tiny model in the test's own, restricted namespace."""
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    offer_folder(cluster, models, claim="models", namespace=namespace)

    def apply(name: str, **spec: Any) -> Served:
        served = Served(cluster, namespace, name)
        served.apply_tiny(build_tiny("qwen3-tied"), **spec)
        return served

    return apply


@pytest.fixture(scope="session")
def smollm2(cluster: Cluster, release: Release, models: Path) -> Served:
    """SmolLM2, available; tests leave it so."""
    namespace = "chat"
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    offer_folder(cluster, models, claim="models", namespace=namespace)
    served = Served(cluster, namespace, "smollm2")
    served.apply_sample("smollm2.yaml")
    served.await_available()
    return served
