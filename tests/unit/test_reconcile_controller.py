"""The controller's loop, its queue and its view of nodes, against a cluster in memory."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from qwen_operator import cluster as api
from qwen_operator.activation import WAITING_ANNOTATION, build_slice
from qwen_operator.cluster import Kind
from qwen_operator.controller import Controller
from qwen_operator.errors import ApiError, OperatorError, RefusedError, UnavailableError
from qwen_operator.gpu_nodes import GpuNodes
from qwen_operator.settings import Settings
from qwen_operator.work_queue import WorkQueue
from tests.unit.operator_states import resource

SETTINGS = Settings(
    engine_image="engine:1",
    namespaces=(),
    health_port=0,
    log_level="info",
    resync_seconds=3600,
    scrape_seconds=3600,
)


class MemoryCluster:
    """A cluster that holds one QwenDeployment; `refuse` fails the next calls, by kind."""

    def __init__(self, about: Mapping[str, Any] | None) -> None:
        self.about = copy.deepcopy(dict(about)) if about else None
        self.children: dict[str, Any] = {}
        self.events: list[Any] = []
        self.status_writes = 0
        self.refuse: dict[str, list[ApiError]] = {}
        self.nodes: list[Any] = []
        self.node_listings = 0
        self.served: set[str] = set()  # kinds of others

    def _check(self, kind: str) -> None:
        if errors := self.refuse.get(kind):
            raise errors.pop(0)

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Any:
        self._check(f"fetch {kind.kind}")
        return self.about if kind is api.QWEN_DEPLOYMENT else self.children.get(kind.kind)

    async def fetch_all(
        self, kind: Kind, namespace: str | None = None, *, selector: str = ""
    ) -> list[Any]:
        self._check(f"list {kind.kind}")
        if kind is api.NODE:
            self.node_listings += 1
            return self.nodes
        return [self.about] if kind is api.QWEN_DEPLOYMENT and self.about else []

    async def fetch_metric(self, namespace: str, metric: str, selector: str) -> list[Any]:
        self._check("metric")
        return [{"metricName": metric}]

    async def serves(self, kind: Kind) -> bool:
        return kind.kind in self.served

    async def scale(self, about: Mapping[str, Any], replicas: int) -> None:
        self._check("scale")
        assert self.about is not None
        self.about["spec"]["replicas"] = replicas

    async def apply(self, manifest: Mapping[str, Any]) -> None:
        self._check(manifest["kind"])
        self.children[manifest["kind"]] = copy.deepcopy(dict(manifest))

    async def delete(self, manifest: Mapping[str, Any]) -> None:
        self._check("delete")
        self.children.pop(manifest["kind"], None)

    async def annotate(self, *_: Any, **__: Any) -> None:
        self._check("annotate")

    async def apply_status(self, about: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self._check("status")
        assert self.about is not None
        self.about["status"] = copy.deepcopy(dict(status))
        self.status_writes += 1

    async def record(self, event: Mapping[str, Any]) -> None:
        self._check("Event")
        self.events.append(event)


async def until(fact: Any) -> None:
    async with asyncio.timeout(5):
        while not fact():  # noqa: ASYNC110 - a fact of another task, with a deadline
            await asyncio.sleep(0.005)


async def test_one_look_applies_children_then_writes_status_then_tells() -> None:
    cluster = MemoryCluster(resource())
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        controller.add("ns", "chat")
        await until(lambda: cluster.events)
    finally:
        await controller.stop()
    assert list(cluster.children) == ["ServiceAccount", "Service", "Deployment"]
    assert cluster.about is not None
    assert cluster.about["status"]["observedGeneration"] == 1
    assert [event["reason"] for event in cluster.events] == ["PlanFits"]


async def test_autoscaling_makes_an_hpa_says_what_is_missing_and_unmakes_it() -> None:
    about = resource()
    about["spec"]["autoscaling"] = {"maxReplicas": 3}
    cluster = MemoryCluster(about)
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        await until(lambda: cluster.status_writes)
        assert "HorizontalPodAutoscaler" in cluster.children
        assert cluster.about is not None
        conditions = {c["type"]: c["reason"] for c in cluster.about["status"]["conditions"]}
        assert conditions["Autoscaling"] == "MetricsApiOff"
        cluster.about["spec"]["autoscaling"]["enabled"] = False
        controller.add("ns", "chat")
        await until(lambda: "HorizontalPodAutoscaler" not in cluster.children)
        await until(lambda: len(cluster.about["status"]["conditions"]) == len(conditions) - 1)
    finally:
        await controller.stop()


async def test_keda_gets_its_object_the_edge_is_the_operators_and_each_step_is_told() -> None:
    about = resource()
    about["spec"]["autoscaling"] = {"maxReplicas": 3, "minReplicas": 0, "provider": "KEDA"}
    cluster = MemoryCluster(about)
    cluster.served = {"ScaledObject"}
    settings = dataclasses.replace(
        SETTINGS, figures_url="http://figures.place.svc:80", figures_port=free_port(),
        has_activator=True,
    )  # fmt: skip
    slice_ = build_slice(
        about["metadata"], address="10.0.0.9", port=4000, is_routed=True, waiting_at=None
    )
    cluster.children["EndpointSlice"] = slice_
    controller = Controller(cluster, settings)
    controller.start()
    try:
        await until(lambda: "ScaledObject" in cluster.children)
        spec = cluster.children["ScaledObject"]["spec"]
        path = "/v1/namespaces/ns/qwendeployments/chat"
        assert spec["triggers"][0]["metadata"]["url"] == f"http://figures.place.svc:80{path}"
        assert spec["minReplicaCount"] == 0
        assert cluster.about is not None
        cluster.about["spec"]["autoscaling"]["provider"] = "BuiltIn"
        cluster.about["spec"]["replicas"] = 0
        slice_["metadata"]["annotations"] = {WAITING_ANNOTATION: now()}
        controller.add("ns", "chat")
        await until(lambda: "ScaledObject" not in cluster.children)
        await until(lambda: cluster.about["spec"]["replicas"] == 1)
        await until(lambda: "Activated" in [event["reason"] for event in cluster.events])
    finally:
        await controller.stop()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_an_api_that_is_away_for_a_moment_is_asked_again() -> None:
    cluster = MemoryCluster(resource())
    cluster.refuse["Service"] = [UnavailableError(503, "", "etcd leader changed")]
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        await until(lambda: cluster.status_writes)
    finally:
        await controller.stop()
    assert set(cluster.children) == {"ServiceAccount", "Service", "Deployment"}


async def test_a_refused_child_is_told_in_status_and_tried_again() -> None:
    cluster = MemoryCluster(resource())
    cluster.refuse["Deployment"] = [RefusedError(422, "Invalid", "spec.affinity: bad")]
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        await until(lambda: cluster.status_writes)
        assert cluster.about is not None
        degraded = cluster.about["status"]["conditions"][3]
        assert (degraded["reason"], degraded["message"]) == (
            "ApplyRefused",
            "Deployment: spec.affinity: bad",
        )
        await until(lambda: "Deployment" in cluster.children)
    finally:
        await controller.stop()


async def test_nothing_is_made_in_a_namespace_that_is_going() -> None:
    cluster = MemoryCluster(resource())
    words = 'serviceaccounts "chat" is forbidden: … because it is being terminated'
    cluster.refuse["ServiceAccount"] = [RefusedError(403, "Forbidden", words)]
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        await until(lambda: not cluster.refuse["ServiceAccount"])
    finally:
        await controller.stop()
    assert (cluster.children, cluster.events, cluster.status_writes) == ({}, [], 0)


async def test_an_event_that_cannot_be_recorded_stops_nothing() -> None:
    cluster = MemoryCluster(resource())
    cluster.refuse["Event"] = [RefusedError(403, "Forbidden", "no")]
    controller = Controller(cluster, SETTINGS)
    controller.start()
    try:
        await until(lambda: cluster.status_writes)
        controller.add("ns", "chat")
    finally:
        await controller.stop()
    assert cluster.status_writes >= 1


async def test_liveness_fails_when_workers_stand_still() -> None:
    now = [0.0]
    controller = Controller(MemoryCluster(None), SETTINGS, clock=lambda: now[0])
    assert "0 s ago" in controller.check_alive()
    now[0] = 3 * SETTINGS.resync_seconds + 1
    with pytest.raises(OperatorError, match="stuck"):
        controller.check_alive()
    controller.start()
    try:
        await until(lambda: controller._last_beat == now[0])
        assert controller.check_alive()
    finally:
        await controller.stop()


async def test_a_key_added_while_it_is_worked_on_comes_round_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "a", "b"):
        queue.add(key)
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "b"
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)


async def test_failures_come_back_later_and_later_and_success_resets() -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = []
    for _ in range(8):
        queue.add("a")
        delays.append(queue.done(await queue.get(), failed=True))
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    queue.add("a")
    assert queue.done(await queue.get()) is None
    queue.add("a")
    assert queue.done(await queue.get(), failed=True) == 1
    queue.close()


async def test_nodes_are_listed_once_and_then_followed_by_events() -> None:
    def node(name: str, count: str) -> dict[str, Any]:
        labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "unrelated": "x"}
        status = {"allocatable": {"nvidia.com/gpu": count, "cpu": "4"}}
        return {"metadata": {"name": name, "labels": labels}, "status": status}

    now = [0.0]
    cluster = MemoryCluster(None)
    cluster.nodes = [node("a", "1")]
    nodes = GpuNodes(cluster, lambda: now[0])
    assert [n.name for n in await nodes.fetch()] == ["a"]
    heartbeat = node("a", "1")
    heartbeat["status"]["conditions"] = [{"type": "Ready"}]
    assert nodes.observe("MODIFIED", heartbeat) is False
    assert nodes.observe("MODIFIED", node("a", "2")) is True
    assert nodes.observe("ADDED", node("b", "1")) is True
    assert nodes.observe("DELETED", node("a", "2")) is True
    assert [n.name for n in await nodes.fetch()] == ["b"]
    assert cluster.node_listings == 1
    now[0] = 3600  # a deletion that no event told of is found out
    assert [n.name for n in await nodes.fetch()] == ["a"]
    assert cluster.node_listings == 2


async def test_without_the_right_to_list_nodes_there_are_none() -> None:
    cluster = MemoryCluster(None)
    cluster.refuse["list Node"] = [RefusedError(403, "Forbidden", "nodes is forbidden")]
    assert await GpuNodes(cluster, lambda: 0.0).fetch() == ()
