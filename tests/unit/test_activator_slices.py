"""The activator's EndpointSlices: which pods are ready, who may be a guest, who leads a Service."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import aiohttp
import pytest

from qwen_operator.activation import ACTIVATOR_ANNOTATION, WAITING_ANNOTATION, build_slice
from qwen_operator.activator.reception import Reception
from qwen_operator.activator.run import build_settings, parse_activator_settings
from qwen_operator.activator.targets import read_guest, ready_endpoints
from qwen_operator.errors import OperatorError, SettingsError, UnavailableError
from qwen_operator.spec_autoscaling import Hold
from tests.unit.operator_states import Json, resource
from tests.unit.test_activator import CHAT, METADATA, until
from tests.unit.test_reconcile_autoscaling import scaled


def pods_slice(*addresses: str, ready: bool | None = True) -> Json:
    """An EndpointSlice as its controller makes it."""
    conditions = {} if ready is None else {"ready": ready}
    return {
        "metadata": {
            "name": "chat-abcde",
            "namespace": "ns",
            "labels": {
                "kubernetes.io/service-name": "chat",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "endpoints": [{"addresses": [a], "conditions": conditions} for a in addresses],
        "ports": [{"name": "http", "port": 8000}],
    }


def test_pods_are_the_ready_ones_of_slices_that_are_not_the_activators_own() -> None:
    own = build_slice(METADATA, address="10.0.0.9", port=5, is_routed=True, waiting_at=None)
    found = ready_endpoints([
        own, pods_slice("10.0.0.1"), pods_slice("10.0.0.2", ready=False),
        pods_slice("fd00::1", ready=None),
        {"metadata": {}, "endpoints": None, "ports": None},
    ])  # fmt: skip
    assert [e.origin for e in found] == ["http://10.0.0.1:8000", "http://[fd00::1]:8000"]
    v6 = build_slice(METADATA, address="fd00::9", port=5, is_routed=False, waiting_at=None)
    assert (v6["addressType"], v6["endpoints"]) == ("IPv6", [])


def test_guests_are_those_that_may_go_to_zero() -> None:
    about = scaled(minReplicas=0, hold={"requests": 7})
    guest = read_guest({**about, "status": {"autoscaling": {"coldStartSeconds": [90, 61]}}})
    assert guest is not None
    assert (guest.hold, guest.start_seconds) == (Hold(7, 600), 61)
    for other in (
        resource(),
        scaled(),
        scaled(minReplicas=0, enabled=False),
        scaled(minReplicas=9),
    ):
        assert read_guest(other) is None


class Slices:
    """A cluster that keeps what is applied, and may refuse."""

    def __init__(self) -> None:
        self.applied: list[Json] = []
        self.failures = 0

    async def apply(self, manifest: Json) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError(503, "", "etcd leader changed")
        self.applied.append(manifest)

    async def delete(self, manifest: Json) -> None:
        self.applied.append({"deleted": manifest["metadata"]["name"]})


async def test_a_service_is_led_here_while_no_pod_is_ready_and_waiting_requests_are_told() -> None:
    cluster = Slices()
    today = datetime(2026, 1, 1, tzinfo=UTC)
    reception = Reception(cluster, "127.0.0.1", lambda: today, leave_seconds=0)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="not there"):
        reception.check_alive()
    reception.start()
    cluster.failures = 1
    key = ("ns", "chat")
    opening = asyncio.create_task(reception.see_resource(key, scaled(minReplicas=0)))
    for _ in range(20):  # its Service's slices are made, and seen, at the same time
        reception.see_slice(pods_slice("10.0.0.1", ready=False), is_gone=False)
        await asyncio.sleep(0)
    await opening
    await until(lambda: cluster.applied)
    assert reception.check_alive() == "1 QwenDeployments"
    slice_ = cluster.applied[-1]
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    [endpoint] = slice_["endpoints"]
    assert endpoint["addresses"] == ["127.0.0.1"]

    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{slice_['ports'][0]['port']}{CHAT}"
        asked = asyncio.create_task(client.post(url, data=b"{}"))
        await until(lambda: len(cluster.applied) == 2)
        notes = cluster.applied[-1]["metadata"]["annotations"]
        assert notes == {
            WAITING_ANNOTATION: "2026-01-01T00:00:00Z", ACTIVATOR_ANNOTATION: "127.0.0.1",
        }  # fmt: skip
        asked.cancel()
        await until(lambda: len(cluster.applied) == 3)
        assert cluster.applied[-1] == slice_

    reception.see_slice(pods_slice("10.0.0.1"), is_gone=False)
    await until(lambda: len(cluster.applied) == 4)
    assert cluster.applied[-1]["endpoints"] == []
    reception.see_slice(pods_slice("10.0.0.1"), is_gone=True)
    await until(lambda: len(cluster.applied) == 5)
    assert cluster.applied[-1]["endpoints"] == slice_["endpoints"]

    reception.see_slice(slice_, is_gone=False)
    await reception.see_resource(key, scaled(minReplicas=1))
    assert cluster.applied[-1] == {"deleted": "chat-activator"}
    await reception.see_resource(key, scaled(minReplicas=0))
    await until(lambda: len(cluster.applied) == 7)
    await reception.stop()
    assert cluster.applied[-1]["endpoints"] == []


async def test_one_that_leaves_is_reached_for_a_while_and_sends_away_who_comes() -> None:
    """kube-proxies follow a slice up to a second later."""
    key, cluster = ("ns", "chat"), Slices()
    today = datetime(2026, 1, 1, tzinfo=UTC)
    reception = Reception(cluster, "127.0.0.1", lambda: today, leave_seconds=0.5)  # type: ignore[arg-type]
    reception.start()
    await reception.see_resource(key, scaled(minReplicas=0))
    await until(lambda: cluster.applied)
    at = f"http://127.0.0.1:{cluster.applied[-1]['ports'][0]['port']}"
    stopping = asyncio.create_task(reception.stop())
    await until(lambda: not cluster.applied[-1]["endpoints"])
    async with aiohttp.ClientSession() as client:
        async with client.post(at + CHAT, data=b"{}") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        async with client.get(f"{at}/v1/models") as answer:
            assert answer.status == 200
        await stopping
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get(f"{at}/v1/models")


async def test_one_whose_place_was_emptied_by_another_that_left_takes_it_again() -> None:
    """The older may leave before it has seen that a younger one took over."""
    key, cluster = ("ns", "chat"), Slices()
    today = datetime(2026, 1, 1, tzinfo=UTC)
    old, new = (
        Reception(cluster, address, lambda: today, leave_seconds=0)  # type: ignore[arg-type]
        for address in ("10.0.0.1", "10.0.0.2")
    )
    for reception in (old, new):
        reception.start()
        before = len(cluster.applied)
        await reception.see_resource(key, scaled(minReplicas=0))
        await until(lambda n=before: len(cluster.applied) > n)
        reception.see_slice(cluster.applied[-1], is_gone=False)
    await old.stop()
    assert cluster.applied[-1]["endpoints"] == []
    new.see_slice(cluster.applied[-1], is_gone=False)
    await until(lambda: cluster.applied[-1]["endpoints"])
    assert cluster.applied[-1]["endpoints"][0]["addresses"] == ["10.0.0.2"]
    await new.stop()


async def test_a_younger_activator_takes_over_and_the_older_leaves_it_alone() -> None:
    key, cluster = ("ns", "chat"), Slices()

    def build(address: str) -> Reception:
        today = datetime(2026, 1, 1, tzinfo=UTC)
        return Reception(cluster, address, lambda: today, leave_seconds=0)  # type: ignore[arg-type]

    old, new = build("10.0.0.1"), build("10.0.0.2")
    for reception in (old, new):
        reception.start()
        before = len(cluster.applied)
        await reception.see_resource(key, scaled(minReplicas=0))
        await until(lambda n=before: len(cluster.applied) > n)
        for other in (old, new):
            other.see_slice(cluster.applied[-1], is_gone=False)
    await old.stop()
    await asyncio.sleep(0.05)
    [endpoint] = cluster.applied[-1]["endpoints"]
    assert endpoint["addresses"] == ["10.0.0.2"]
    await new.stop()
    assert cluster.applied[-1]["endpoints"] == []


def test_its_settings_come_from_flags_and_environment_and_bad_ones_are_named() -> None:
    found = parse_activator_settings([], {"POD_IP": "10.1.2.3", "QWEN_NAMESPACES": "b,a"})
    assert (found.address, found.namespaces, found.health_port) == ("10.1.2.3", ("a", "b"), 8080)
    for argv, words in (
        (["--address", "here"], "POD_IP='here'"),
        (["--address", "::1", "--health-port", "x"], "QWEN_HEALTH_PORT='x'"),
        (["--address", "::1", "--log-level", "loud"], "QWEN_LOG_LEVEL='loud'"),
    ):
        with pytest.raises(SettingsError, match=words):
            parse_activator_settings(argv, {})


def test_kopf_is_told_to_write_nothing_and_to_look_at_models_slices_only() -> None:
    settings = build_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert set(settings.watching.label_selectors.values()) == {"qwenoperator.io/deployment"}
