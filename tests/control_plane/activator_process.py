"""Starts and ends `qwen-operator activator` as its container would run it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.control_plane.operator_process import free_port

ADDRESS = "198.51.100.7"  # nobody's (RFC 5737): the API allows no loopback address in a slice


class ActivatorProcess:
    """One activator for all namespaces."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._log, port = folder / "activator.log", free_port()
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "qwen_operator", "activator", "--address", ADDRESS,
                 "--health-port", str(port)],
                env=cluster.environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._url = f"http://127.0.0.1:{port}/healthz"
        until(self._is_healthy, what="the activator's /healthz", within_seconds=30)

    @property
    def log(self) -> str:
        """All that it said so far."""
        return self._log.read_text()

    def end(self) -> None:
        """End it as kubelet does, and check that it never stumbled."""
        self._process.terminate()
        self._process.wait(timeout=30)
        assert "Traceback" not in self.log, self.log

    def _is_healthy(self) -> bool:
        assert self._process.poll() is None, f"the activator ended:\n{self.log}"
        try:
            with urllib.request.urlopen(self._url, timeout=5) as got:
                return bool(got.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False
