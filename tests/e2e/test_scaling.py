"""Real engines under load: replicas follow their blocks, to zero and back, and no stream is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.volumes import offer_folder
from tests.e2e.release import Release
from tests.e2e.scaling_model import ScaledModel

pytestmark = pytest.mark.root


def test_replicas_follow_the_blocks_in_use_from_one_to_three_and_to_none(
    cluster: Cluster, to_zero: Release, models: Path, namespace: str
) -> None:
    offer_folder(cluster, models, claim="models", namespace=namespace)
    scaled = ScaledModel(cluster, namespace, "scaled")
    scaled.apply_scaled()
    scaled.await_available()
    scaled.await_condition("Autoscaling", "True")
    with scaled.light() as light:
        with scaled.load() as load:
            out = scaled.await_replicas(3)
            scaled.await_ready(3)
        # not before a cold start and two minutes after the scale-out
        back = scaled.await_replicas(1, within=240)
        scaled.await_ready(1)
    print(f"1 → 3 after {out:.1f} s of load, 3 → 1 after {back:.1f} s without")
    assert [end for end in load.ends + light.ends if end.finish_reason != "length"] == []
    assert min(len(load.ends), len(light.ends)) > 8

    scaled.patch({"autoscaling": {"minReplicas": 0, "idleSeconds": 5}})
    scaled.await_replicas(0)
    scaled.await_ready(0)
    with scaled.light() as woken:
        scaled.await_replicas(1)
        scaled.await_ready(1)
    assert [end for end in woken.ends if end.finish_reason != "length"] == []
    assert woken.ends
    said = cluster.kubectl("logs", "-n", "qwen-system", "deploy/qwen-operator-activator")
    assert "requests are passed on" in said
    assert "orbidden" not in said
