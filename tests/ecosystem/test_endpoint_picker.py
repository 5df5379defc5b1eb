"""The stock endpoint picker finds our engines by the operator's InferencePool: the freer one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.cluster.volumes import offer_folder
from tests.e2e.release import Release
from tests.e2e.served import Served
from tests.e2e.talkers import Talkers
from tests.ecosystem import picker
from tests.models.tiny import build_tiny

pytestmark = pytest.mark.root

PICKS = 100
# two answers of full length fill the pool, so that of six some wait
FEW_BLOCKS = {"blockSize": 16, "numGpuBlocksOverride": 128, "maxNumSeqs": 8}


@pytest.fixture
def two_engines(
    cluster: Cluster, release: Release, models: Path, namespace: str
) -> Iterator[Served]:
    picker.apply_crds(cluster)
    offer_folder(cluster, models, claim="models", namespace=namespace)
    served = Served(cluster, namespace, "pooled")
    overrides = {"overrides": FEW_BLOCKS}
    served.apply_tiny(build_tiny("qwen3-tied"), replicas=2, engine=overrides)
    served.await_available()
    yield served
    picker.delete_crds(cluster)


def test_nine_of_ten_requests_go_to_the_freer_of_two_engines(
    cluster: Cluster, two_engines: Served
) -> None:
    served, namespace = two_engines, two_engines.namespace
    pool = ("inferencepool", "pooled", "-n", namespace)
    until(lambda: cluster.exists(*pool), what="the InferencePool", within_seconds=60)
    assert cluster.get(*pool)["spec"]["endpointPickerRef"]["name"] == "pooled-epp"
    addresses = [f"{pod['status']['podIP']}:8000" for pod in served.pods()]
    with picker.running(cluster, pool="pooled", namespace=namespace) as it:
        until(
            lambda: set(it.pick(10, served.model())) <= set(addresses),
            what="both engines known to the picker",
            within_seconds=60,
        )
        for busy, free in (addresses, addresses[::-1]):
            with Talkers(f"http://{busy}", served.model(), clients=6, max_tokens=900) as load:
                until(
                    lambda: max(served.blocks_used().values()) > 30,
                    what="an engine under load",
                    within_seconds=60,
                )
                picks = it.pick(PICKS, served.model())
            assert picks.get(free, 0) >= 0.9 * PICKS, f"{picks}, {busy} was busy"
            assert {end.error for end in load.ends} == {None}
