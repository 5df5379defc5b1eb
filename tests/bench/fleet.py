"""A cluster in memory with many scaled deployments, and a process that answers as their engines."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
import resource
import time
from collections.abc import Mapping, Sequence
from ctypes import c_ulong
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

from qwen_engine.planning import Demands, find_model, gpu_from_spec, make_plan, plan_to_dict
from qwen_operator import cluster as api
from qwen_operator import names
from qwen_operator.cluster import Kind
from tests.unit.operator_states import l4

Json = Mapping[str, Any]
_MODEL, _GPU, _NAMESPACE = "Qwen/Qwen3-4B", "NVIDIA-L4", "fleet"
_SINCE = "2026-01-01T00:00:00Z"
_WAVE_SECONDS = 120.0


class MemoryFleet:
    """The Cluster protocol over dictionaries: what is applied is live, its pods ready at once."""

    def __init__(self, deployments: int, pods_each: int, answers: Synchronized[c_ulong]) -> None:
        self.deployments, self.pods = deployments, deployments * pods_each
        # of this process alone: others may do the same on this machine
        net = f"127.{128 + os.getpid() % 64}"
        self.addresses = [f"{net}.{n // 250}.{1 + n % 250}" for n in range(self.pods)]
        self._answers = answers
        self.status_writes = 0
        self._owners = {f"d{n}": _resource(f"d{n}", pods_each) for n in range(deployments)}
        self._children: dict[tuple[str, str], dict[str, Any]] = {}
        self._pods = {
            f"d{n}": [_pod(f"d{n}", k, self.addresses[n * pods_each + k]) for k in range(pods_each)]
            for n in range(deployments)
        }
        node = l4()
        labels = {"metadata": {"name": node.name, "labels": dict(node.labels)}}
        self._nodes = [{**labels, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}]

    @property
    def answers(self) -> int:
        """How often an engine was asked so far."""
        return int(self._answers.value)

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Return one object, as fresh as if it had come over HTTP."""
        if kind is api.QWEN_DEPLOYMENT:
            return copy.deepcopy(self._owners[name])
        return copy.deepcopy(self._children.get((kind.kind, name)))

    async def fetch_all(
        self, kind: Kind, namespace: str | None = None, *, selector: str = ""
    ) -> list[Json]:
        """Return all objects of a kind."""
        if kind is api.POD:
            return copy.deepcopy(self._pods[selector.rpartition("=")[2]])
        if kind is api.NODE:
            return copy.deepcopy(self._nodes)
        return list(self._owners.values()) if kind is api.QWEN_DEPLOYMENT else []

    async def serves(self, kind: Kind) -> bool:
        """Say that nothing of others is installed."""
        return False

    async def scale(self, resource: Json, replicas: int) -> None:
        """Never asked: nothing here goes to zero."""

    async def apply(self, manifest: Json) -> None:
        """Make the manifest live; a Deployment has all its pods at once."""
        name, live = manifest["metadata"]["name"], copy.deepcopy(dict(manifest))
        if manifest["kind"] == "Deployment":
            count = len(self._pods[name])
            counts = ("replicas", "updatedReplicas", "readyReplicas")
            live["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, count)}
        self._children[manifest["kind"], name] = live

    async def delete(self, manifest: Json) -> None:
        """Forget an object."""
        self._children.pop((manifest["kind"], manifest["metadata"]["name"]), None)

    async def annotate(self, kind: Kind, namespace: str, name: str, **changes: Any) -> None:
        """Set a pod's annotations."""
        for pod in self._pods[name.partition("-")[0]]:
            if pod["metadata"]["name"] == name:
                pod["metadata"]["annotations"].update(changes["annotations"])

    async def apply_status(self, resource: Json, status: Json) -> None:
        """Replace a status."""
        self._owners[resource["metadata"]["name"]]["status"] = copy.deepcopy(dict(status))
        self.status_writes += 1

    async def record(self, event: Json) -> None:
        """Take an event."""


def _resource(name: str, replicas: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": _NAMESPACE, "uid": name, "generation": 1}
    spec = {
        "model": {"id": _MODEL},
        "replicas": replicas,
        "autoscaling": {"maxReplicas": 2 * replicas},
    }
    kind = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    return {**kind, "metadata": metadata, "spec": spec}


def _pod(owner: str, number: int, address: str) -> dict[str, Any]:
    turned = [
        {"type": kind, "status": "True", "lastTransitionTime": _SINCE}
        for kind in ("PodScheduled", "Ready")
    ]
    container = {"name": "engine", "ready": True, "restartCount": 0, "state": {"running": {}}}
    name = f"{owner}-{number}"
    return {
        "metadata": {
            "name": name, "uid": name, "creationTimestamp": _SINCE, "annotations": {},
            "labels": names.labels(owner),
        },
        "spec": {"nodeName": "l4-0"},
        "status": {
            "phase": "Running", "podIP": address, "conditions": turned,
            "containerStatuses": [container],
        },
    }  # fmt: skip


def serve_engines(addresses: Sequence[str], is_up: Event, count: Synchronized[c_ulong]) -> None:
    """Answer /stats on every address, with figures that go up and down; never returns."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(addresses, is_up, count))


async def _serve(addresses: Sequence[str], is_up: Event, count: Synchronized[c_ulong]) -> None:
    plan = plan_to_dict(make_plan(find_model(_MODEL), gpu_from_spec(_GPU), Demands()))
    rest = json.dumps({"plan": plan, "measured": {"weights": 1}}).encode()[1:]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[0]
        phase = sum(map(int, host.split("."))) % 60 / 60
        while await reader.readuntil(b"\r\n\r\n"):
            count.value += 1
            body = _figures(phase) + rest
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    for address in addresses:
        await asyncio.start_server(quietly, address, names.ENGINE_PORT)
    is_up.set()
    await asyncio.Event().wait()


def _figures(phase: float) -> bytes:
    """Return the head of a /stats: of 1,000 blocks 50 to 550 are used, in waves."""
    now = time.time()
    used = int(300 + 250 * math.sin(2 * math.pi * (now / _WAVE_SECONDS + phase)))
    blocks = {"total": 1000, "free": 1000 - used, "used": used, "cached": 0}
    told = {f"num_{state}_gpu_blocks": value for state, value in blocks.items()}
    told |= {f"num_requests_{state}": 0 for state in ("waiting", "swapped")}
    told |= {"num_requests_running": used // 20, "num_requests_finished": int(now * 2)}
    told |= {"num_blocks_allocated": int(now * 40) + used, "num_blocks_freed": int(now * 40)}
    return json.dumps(told).encode()[:-1] + b", "
