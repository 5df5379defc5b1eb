"""One QwenDeployment on a real node, as its owner and its users handle it."""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.paths import REPOSITORY
from tests.cluster.polling import until

# torch alone takes 3 s to import on an idle machine, and 25 s on a busy one
AVAILABLE_SECONDS = 120.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CHILDREN = ("deployment", "replicaset", "service", "serviceaccount", "pod", "endpointslice")


class Served:
    """kubectl around one QwenDeployment in its namespace."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def kubectl(self, *args: str, seconds: float = 60) -> str:
        """Run kubectl in the namespace. Raises CommandError."""
        return self.cluster.kubectl("-n", self.namespace, *args, seconds=seconds)

    def apply_sample(self, file: str) -> None:
        """Apply a sample that is shipped, as it stands."""
        self.kubectl("apply", "-f", str(REPOSITORY / "crds" / "samples" / file))

    def apply_tiny(self, model: Path, **spec: Any) -> None:
        """Apply a model that no catalogue knows, planned from its config.json.

        Its pods ask for little CPU: several of them, and those of other tests, share the node.
        """
        resources = {"requests": {"cpu": "50m"}}
        manifest = {
            "apiVersion": "qwenoperator.io/v1alpha1",
            "kind": "QwenDeployment",
            "metadata": {"name": self.name},
            "spec": {
                "model": {
                    "id": f"tests/{model.name}",
                    "uri": f"pvc://models/{model.name}",
                    "config": json.loads((model / "config.json").read_text()),
                },
                "gpu": {"count": 0},
                **spec,
                "engine": {"resources": resources, **spec.get("engine", {})},
            },
        }
        self.cluster.apply(manifest, namespace=self.namespace)

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Change the spec."""
        body = json.dumps({"spec": spec})
        self.kubectl("patch", "qwen", self.name, "--type=merge", "-p", body)

    def status(self) -> dict[str, Any]:
        """Return the status if it is about the spec as it stands, else {}."""
        found = self.cluster.get("qwen", self.name, "-n", self.namespace)
        status: dict[str, Any] = found.get("status", {})
        is_current = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if is_current else {}

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition, {} before there is one."""
        conditions = self.status().get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def await_condition(self, kind: str, status: str) -> dict[str, Any]:
        """Wait until a condition has a status, and return it."""

        def holds() -> dict[str, Any] | None:
            condition = self.condition(kind)
            return condition if condition.get("status") == status else None

        what = f"{self.name} {kind}={status}"
        try:
            return until(holds, what=what, within_seconds=AVAILABLE_SECONDS, every_seconds=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._explain()}") from None

    def await_available(self) -> None:
        """Wait until the model is served and the rollout is over."""
        self.await_condition("Available", "True")
        self.await_condition("Progressing", "False")

    def pods(self) -> list[dict[str, Any]]:
        """Return the engine's pods."""
        label = f"qwenoperator.io/deployment={self.name}"
        found: list[dict[str, Any]] = self.cluster.get("pods", "-n", self.namespace, "-l", label)[
            "items"
        ]
        return found

    def url(self) -> str:
        """Return the Service's address, which can be reached from here."""
        spec = self.cluster.get("service", self.name, "-n", self.namespace)["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def model(self) -> str:
        """Return the name by which clients ask for the model."""
        name: str = self.cluster.get("qwen", self.name, "-n", self.namespace)["spec"]["model"]["id"]
        return name

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return what the engine of each ready pod tells, by the pod's name."""
        found = {}
        for pod in self.pods():
            if any(c["ready"] for c in pod["status"].get("containerStatuses", ())):
                url = f"http://{pod['status']['podIP']}:8000/stats"
                with _DIRECT.open(url, timeout=10) as response:
                    found[pod["metadata"]["name"]] = json.load(response)
        return found

    def blocks_used(self) -> dict[str, int]:
        """Return each ready pod's used KV blocks, by its name."""
        return {name: told["num_used_gpu_blocks"] for name, told in self.stats().items()}

    def await_routed(self, count: int) -> None:
        """Wait until new connections to the Service reach so many pods: kube-proxy comes later."""
        body = json.dumps({"model": self.model(), "prompt": "hello", "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url()}/v1/completions", body, headers)

        def is_reached() -> bool:
            with _DIRECT.open(request, timeout=30) as response:
                response.read()
            return sum(told["num_requests_finished"] > 0 for told in self.stats().values()) == count

        until(is_reached, what=f"{count} pods reached by the Service", within_seconds=60)

    def children(self) -> set[str]:
        """Return the objects that were made for it, as KIND/NAME."""
        listed = self.kubectl("get", ",".join(CHILDREN), "-o", "name").split()
        return {name for name in listed if name.partition("/")[2].startswith(self.name)}

    def await_gone(self) -> None:
        """Wait until it and all its children are gone."""
        until(
            lambda: not self.children(),
            what=f"children of {self.name} gone, now {self.children()}",
            within_seconds=90,
        )
        assert not self.cluster.exists("qwen", self.name, "-n", self.namespace)

    def _explain(self) -> str:
        described = self.kubectl("describe", "qwen", self.name)
        logs = self.kubectl("logs", f"deployment/{self.name}", "--tail=30", "--all-containers")
        return f"{described}\n{logs}"
