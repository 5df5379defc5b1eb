"""The operator as its Helm release, for the end-to-end tests."""

import contextlib
import os
import signal
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.paths import REPOSITORY
from tests.e2e.processes_of_pods import processes_of

CHART = REPOSITORY / "charts" / "qwen-operator"
NAME, NAMESPACE = "qwen-operator", "qwen-system"


class Release:
    """Installs, changes and removes the chart; ends the operator's process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def install(self, *values: str) -> None:
        """`helm upgrade --install` with the images of this clone, and wait for the operator."""
        self._cluster.helm(
            *("upgrade", "--install", NAME, str(CHART), "-n", NAMESPACE, "--create-namespace"),
            *("-f", str(CHART / "ci" / "local-images-values.yaml"), *values),
            *("--wait", "--timeout", "90s"),
        )

    def uninstall(self) -> None:
        """`helm uninstall`, and wait until the operator's pod is gone."""
        self._cluster.helm("uninstall", NAME, "-n", NAMESPACE, "--wait")
        self._cluster.kubectl("wait", "-n", NAMESPACE, "pods", "--all", "--for=delete")

    def scale(self, replicas: int) -> None:
        """Stop the operator (0) or start it again (1), and wait until it is so."""
        deployment = f"deployment/{NAME}"
        self._cluster.kubectl("scale", "-n", NAMESPACE, deployment, f"--replicas={replicas}")
        if replicas:
            self._cluster.kubectl("rollout", "status", "-n", NAMESPACE, deployment)
        else:
            self._cluster.kubectl("wait", "-n", NAMESPACE, "pods", "--all", "--for=delete")

    def kill_operator(self) -> int:
        """SIGKILL the operator's process; kubelet restarts its container.

        Returns how often that had been restarted before.
        """
        pods = self._operators()
        restarts = _restarts(pods)
        killed = [pid for pod in pods for pid in processes_of(pod, "qwen-operator")]
        assert killed, "no operator process found"
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return restarts

    def has_restarted(self, before: int) -> bool:
        """Say whether kubelet has restarted the operator's container since so many times."""
        return _restarts(self._operators()) > before

    def _operators(self) -> list[dict[str, Any]]:
        """The operator's own pod: an activator that goes would take its restarts along."""
        selector = "app.kubernetes.io/component=operator"
        return list(self._cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"])


def _restarts(pods: list[dict[str, Any]]) -> int:
    return sum(c["restartCount"] for p in pods for c in p["status"]["containerStatuses"])
