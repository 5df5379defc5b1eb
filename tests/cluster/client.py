"""A handle on a running cluster, as tests and the demo use it: kubectl, helm, manifests.

Holds no process: whoever started the cluster ends it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import tools
from tests.cluster.paths import RunDirectory
from tests.cluster.polling import until
from tests.cluster.subnets import ALL_CLUSTERS

Manifest = Mapping[str, Any]


class CommandError(Exception):
    """kubectl or helm refused; carries the command, its exit code and what it printed."""

    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        self.stdout, self.stderr, self.returncode = result.stdout, result.stderr, result.returncode
        command = " ".join(map(str, result.args))
        super().__init__(f"{command}: exit {result.returncode}\n{result.stdout}{result.stderr}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that answers under `kubeconfig`; `run` is set for the ones we start."""

    kubeconfig: Path
    run: RunDirectory | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which any Kubernetes client means this cluster."""
        # a proxy from the environment must not come between us and our own machine
        direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", ALL_CLUSTERS]))
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "NO_PROXY": direct,
            "no_proxy": direct,
        }

    @property
    def kubectl_path(self) -> Path:
        """The kubectl of our clusters' own release; for others the one on PATH, if any."""
        return self._program("kubectl", "kubernetes")

    def kubectl(self, *args: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Run kubectl and return its output. Raises CommandError."""
        return self._run(self.kubectl_path, *args, stdin=stdin, seconds=seconds)

    def helm(self, *args: str, seconds: float = 120) -> str:
        """Run Helm and return its output. Raises CommandError."""
        return self._run(self._program("helm", "helm"), *args, seconds=seconds)

    def wait_established(self, crd: str) -> None:
        """Wait until objects of the definition can be made.

        `kubectl wait` fails at once where the API server has not written any condition yet.
        """

        def is_established() -> bool:
            conditions = self.get("crd", crd).get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        until(is_established, what=f"{crd} established", within_seconds=60)

    def get(self, *args: str) -> dict[str, Any]:
        """Return what `kubectl get ARGS` finds, as parsed JSON. Raises CommandError."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def exists(self, *args: str) -> bool:
        """Say whether `kubectl get ARGS` finds anything."""
        return bool(self.kubectl("get", *args, "--ignore-not-found", "-o", "name").strip())

    def apply(self, *manifests: Manifest, namespace: str | None = None) -> str:
        """Apply manifests as a user would, with `kubectl apply -f -`. Raises CommandError."""
        scope = ("-n", namespace) if namespace else ()
        documents = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return self.kubectl("apply", *scope, "-f", "-", stdin=json.dumps(documents))

    def _program(self, name: str, tool_set: str) -> Path:
        found = None if self.run else shutil.which(name)
        return Path(found) if found else tools.ensure(tool_set) / name

    def _run(self, program: Path, *args: str, stdin: str | None = None, seconds: float = 60) -> str:
        result = subprocess.run(
            [str(program), *args],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if result.returncode:
            raise CommandError(result)
        return result.stdout
