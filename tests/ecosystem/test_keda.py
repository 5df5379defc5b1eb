"""KEDA scales real engines by the operator's figures: from none to three and to none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.volumes import offer_folder
from tests.e2e.release import Release
from tests.e2e.scaling_model import ScaledModel
from tests.ecosystem import keda

pytestmark = pytest.mark.root


@pytest.fixture
def beside_keda(cluster: Cluster, release: Release) -> Iterator[Release]:
    """The chart as it is installed where KEDA owns the metrics API, and KEDA."""
    release.install("--set", "activator.enabled=true", "--set", "metricsApi.enabled=false")
    cluster.kubectl("delete", "apiservice", keda.API_SERVICE, "--ignore-not-found")
    with keda.running(cluster):
        yield release
    release.install()


def test_keda_wakes_a_model_follows_its_blocks_and_lets_it_go_again(
    cluster: Cluster, beside_keda: Release, models: Path, namespace: str
) -> None:
    offer_folder(cluster, models, claim="models", namespace=namespace)
    scaled = ScaledModel(cluster, namespace, "scaled")
    scaled.apply_scaled(replicas=0, provider="KEDA", minReplicas=0, idleSeconds=10)
    scaled.await_condition("Autoscaling", "True")
    assert scaled.replicas() == 0
    try:
        with scaled.light() as light:
            woken = scaled.await_replicas(1)
            scaled.await_ready(1)
            with scaled.load() as load:
                out = scaled.await_replicas(3)
                scaled.await_ready(3)
        gone = scaled.await_replicas(0)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{keda.logs(cluster)}") from None
    print(f"0 → 1 after {woken:.1f} s, 1 → 3 after {out:.1f} s of load, 3 → 0 after {gone:.1f} s")
    assert [end for end in load.ends + light.ends if end.finish_reason != "length"] == []
    assert min(len(load.ends), len(light.ends)) > 8
    # KEDA's HPA is the only one, and the operator wrote no number
    assert not cluster.exists("hpa", "scaled", "-n", namespace)
    assert cluster.exists("hpa", "keda-hpa-scaled", "-n", namespace)
    said = cluster.kubectl("logs", "-n", "qwen-system", "deployment/qwen-operator")
    assert "scaled to" not in said
    assert "orbidden" not in said

    scaled.patch({"autoscaling": {"provider": "BuiltIn"}})
    scaled.kubectl("wait", "--for=delete", "scaledobject/scaled", "--timeout=60s", seconds=70)
    assert not cluster.exists("hpa", "keda-hpa-scaled", "-n", namespace)
