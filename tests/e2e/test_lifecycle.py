"""Owners' side: rollouts, deletion, the chart's upgrade; the operator up, killed or gone."""

from collections.abc import Callable

import pytest

from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.e2e.release import Release
from tests.e2e.served import Served

pytestmark = pytest.mark.root


def test_a_rollout_finishes_though_the_operator_is_killed_in_its_midst(
    release: Release, serve: Callable[[str], Served]
) -> None:
    served = serve("rolling")
    served.await_available()
    (before,) = served.pods()
    served.patch({"context": {"maxModelLen": 128}})
    until(lambda: len(served.pods()) > 1, what="the rollout's new pod", within_seconds=30)
    restarts = release.kill_operator()
    # Available may be what the operator wrote of the old pod before it was killed
    until(
        lambda: before["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in served.pods()},
        what="the end of the old pod",
        within_seconds=90,
    )
    # kubelet waits longer with each restart, up to after the rollout
    until(lambda: release.has_restarted(restarts), what="another operator", within_seconds=90)
    served.await_available()
    assert served.status()["plan"]["maxModelLen"] == 128


def test_deleting_leaves_nothing_with_the_operator_up_or_down(
    release: Release, serve: Callable[[str], Served]
) -> None:
    first, second = serve("first"), serve("second")
    for served in (first, second):
        served.await_available()
        kinds = {name.partition("/")[0].partition(".")[0] for name in served.children()}
        assert kinds >= {"deployment", "replicaset", "service", "serviceaccount", "pod"}
    first.kubectl("delete", "qwen", "first", "--timeout=30s")
    first.await_gone()
    release.scale(0)
    try:
        second.kubectl("delete", "qwen", "second", "--timeout=30s")
        second.await_gone()
    finally:
        release.scale(1)


def test_the_chart_is_upgraded_and_removed_without_touching_what_is_served(
    cluster: Cluster, release: Release, smollm2: Served
) -> None:
    (pod,) = smollm2.pods()
    release.install("--set", "logLevel=debug")
    smollm2.await_available()
    release.uninstall()
    assert not cluster.exists("deployment", "-n", "qwen-system", "qwen-operator")
    assert cluster.exists("qwen", "-n", smollm2.namespace, smollm2.name)
    release.install()
    smollm2.await_available()
    (same,) = smollm2.pods()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["ready"]
