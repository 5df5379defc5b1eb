"""The operator as its Helm release, for the end-to-end tests."""

import contextlib
import os
import signal

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

    def kill_operator(self) -> None:
        """SIGKILL the operator's process; kubelet restarts its container."""
        pods = self._cluster.get("pods", "-n", NAMESPACE)["items"]
        killed = [pid for pod in pods for pid in processes_of(pod, "qwen-operator")]
        assert killed, "no operator process found"
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def restarts(self) -> int:
        """How often kubelet has restarted the operator's container."""
        pods = self._cluster.get("pods", "-n", NAMESPACE)["items"]
        return sum(c["restartCount"] for p in pods for c in p["status"]["containerStatuses"])
