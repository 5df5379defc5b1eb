"""The pods with the fewest used blocks go first, and telling Kubernetes so costs few writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.engines import Engine, give_address
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

COST = "controller.kubernetes.io/pod-deletion-cost"
_PATCHES = re.compile(
    r"^apiserver_request_total{(?P<labels>.*)} (?P<count>[0-9.e+]+)$", re.MULTILINE
)


class Pods:
    """The pods of `chat`, each with an engine of its own."""

    def __init__(self, qwen: Qwen, count: int) -> None:
        self.qwen = qwen
        until(lambda: len(self.names()) == count, what="pods", within_seconds=SECONDS)
        self.engines = {name: Engine(free=100) for name in sorted(self.names())}
        for name, engine in self.engines.items():
            give_address(qwen, name, engine)

    def names(self) -> set[str]:
        """Return the pods that stay and have an address."""
        return {
            pod["metadata"]["name"]
            for pod in self.qwen.all("pod")
            if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
        }

    def costs(self) -> list[int]:
        """Return the deletion costs, in the order of the engines."""
        found = {p["metadata"]["name"]: p["metadata"] for p in self.qwen.all("pod")}
        return [int(found[n].get("annotations", {}).get(COST, 0)) for n in self.engines]

    def use(self, *used: int) -> None:
        """Fill the engines so far, of 100 blocks."""
        for engine, count in zip(self.engines.values(), used, strict=True):
            engine.free = 100 - count

    def writes(self) -> int:
        """Return how often anybody has patched a pod, by the API server's own count."""
        text = self.qwen.cluster.kubectl("get", "--raw", "/metrics")
        return sum(
            int(float(found["count"]))
            for found in _PATCHES.finditer(text)
            if {'resource="pods"', 'subresource=""', 'verb="PATCH"'}
            <= set(found["labels"].split(","))
        )


@pytest.fixture
def pods(qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory) -> Iterator[Pods]:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=4)
    qwen.wait_for("chat", "Progressing", "Settled")
    made = Pods(qwen, 4)
    yield made
    for engine in made.engines.values():
        engine.close()


def test_costs_follow_the_blocks_within_the_bound_and_the_least_used_pods_go(pods: Pods) -> None:
    qwen, before = pods.qwen, pods.writes()
    assert stays(pods.writes, 4), "idle pods are not written"

    pods.use(60, 20, 80, 0)
    until(lambda: pods.costs() == [60, 20, 80, 0], what="costs", within_seconds=SECONDS)
    assert pods.writes() - before == 3
    assert stays(pods.writes, 3), "nothing new, nothing written"

    pods.use(25, 70, 78, 0)  # too soon after the first writes for others …
    until(
        lambda: qwen.status("chat").get("blocks", {}).get("used") == 173,
        what="the operator to hear of it",
        within_seconds=SECONDS,
    )
    _, second, third, _ = pods.engines
    qwen.kubectl("scale", "qwen", "chat", "--replicas=2")  # … until pods have to go
    until(lambda: len(pods.names()) == 2, what="scaled in", within_seconds=SECONDS)
    assert pods.names() == {second, third}
    assert pods.writes() - before <= 7
