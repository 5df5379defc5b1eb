"""QwenDeployments in one namespace, as a user with kubectl handles them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.paths import REPOSITORY
from tests.cluster.polling import until
from tests.control_plane.reader import ApiReader

CRD = Path(REPOSITORY) / "crds" / "qwendeployments.yaml"
SAMPLES = sorted((Path(REPOSITORY) / "crds" / "samples").glob("*.yaml"))
SECONDS = 30.0  # a loaded machine, and the operator's own patience of 15 s

CPU = {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}}
L4_LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.memory": "23034",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
}


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """A QwenDeployment; its spec is `CPU` where nothing is given."""
    return {
        "apiVersion": "qwenoperator.io/v1alpha1",
        "kind": "QwenDeployment",
        "metadata": {"name": name},
        "spec": spec or CPU,
    }


def stays(fact: Callable[[], object], seconds: float) -> bool:
    """Say whether a fact is the same, and nothing but the same, over a time."""
    first, end = fact(), time.monotonic() + seconds
    try:
        until(
            lambda: fact() != first or time.monotonic() > end, what="", within_seconds=seconds + 5
        )
    except TimeoutError:
        return False
    return fact() == first


class Qwen:
    """kubectl for what users do, and quick reads for what tests wait for."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._reader = ApiReader(cluster, namespace)

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace. Raises CommandError."""
        return self.cluster.kubectl("-n", self.namespace, *args, stdin=stdin)

    def apply(self, name: str, **spec: Any) -> None:
        """`kubectl apply` a QwenDeployment."""
        self.cluster.apply(manifest(name, **spec), namespace=self.namespace)

    def create(self, name: str, **spec: Any) -> None:
        """Create a QwenDeployment without kubectl's own time."""
        self._reader.create("qwen", manifest(name, **spec))

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        """`kubectl patch` a QwenDeployment's spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "qwen", name, "--type=merge", "-p", patch)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object, or {} if there is none."""
        return self._reader.get(kind, name)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind in the namespace."""
        return self._reader.all(kind)

    def status(self, name: str) -> dict[str, Any]:
        """Return a QwenDeployment's status; {} before there is one."""
        found: dict[str, Any] = self.get("qwen", name).get("status", {})
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return one condition; {} before there is one."""
        conditions = self.status(name).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def wait_for(self, name: str, kind: str, reason: str) -> dict[str, Any]:
        """Wait until a condition has a reason, and return it."""

        def found() -> dict[str, Any] | None:
            condition = self.condition(name, kind)
            return condition if condition.get("reason") == reason else None

        what = f"{name} {kind}={reason}, now {self.condition(name, kind)}"
        return until(found, what=what, within_seconds=SECONDS)

    def wait_for_message(self, name: str, kind: str, words: str) -> str:
        """Wait until a condition's message contains words, and return it."""

        def found() -> str | None:
            message: str = self.condition(name, kind).get("message", "")
            return message if words in message else None

        return until(found, what=f"{name} {kind} says {words!r}", within_seconds=SECONDS)

    def evict(self, pod: str) -> None:
        """Evict a pod as `kubectl drain` does. Raises CommandError."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def wait_gone(self, kind: str, name: str) -> None:
        """Wait until an object is gone."""
        until(lambda: not self.get(kind, name), what=f"{kind} {name} gone", within_seconds=SECONDS)

    def events(self, name: str) -> list[tuple[str, str]]:
        """Return (type, reason) of the events about a QwenDeployment."""
        about = [e for e in self.all("event") if e["involvedObject"]["name"] == name]
        ours = [e for e in about if e["involvedObject"]["kind"] == "QwenDeployment"]
        return [(event["type"], event["reason"]) for event in ours]

    def wait_events(self, name: str, *wanted: tuple[str, str]) -> list[tuple[str, str]]:
        """Wait until all wanted are there: they are written after the status they tell of."""

        def found() -> list[tuple[str, str]]:
            events = self.events(name)
            return events if set(wanted) <= set(events) else []

        return until(found, what=f"events {wanted}", within_seconds=SECONDS)

    def versions(self) -> dict[str, str]:
        """Return the resourceVersion of all that the operator may write, pods included."""
        kinds = ("qwen", "deployment", "replicaset", "service", "serviceaccount", "pod", "event")
        return {
            f"{kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind in kinds
            for item in self.all(kind)
        }
