"""Starts, kills and ends `qwen-operator` as its container would run it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.client import Cluster
from tests.cluster.polling import until


class OperatorProcess:
    """One operator process for all namespaces. Its log is kept over restarts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._log = folder / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}
        self.port, self.figures_port = free_port(), free_port()

    @property
    def is_running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the operator said so far."""
        return self._log.read_text()

    def start(self, **env: str) -> None:
        """Start it and wait until its health check answers."""
        self.spawn(**env)
        until(self.is_healthy, what="the operator's /healthz", within_seconds=30)

    def spawn(self, **env: str) -> None:
        """Start it without waiting, as it was started before where nothing else is said."""
        self._env = env or self._env
        flags = ["--health-port", str(self.port), "--engine-image", "qwen-engine:test"]
        flags += ["--resync-seconds", "3", "--autoscaling-seconds", "1"]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "qwen_operator", *flags, "--scrape-seconds", "1"],
                env={**self._cluster.environment, **self._env},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def is_healthy(self) -> bool:
        """Ask /healthz, as kubelet does."""
        assert self._process is not None
        assert self._process.poll() is None, f"the operator ended:\n{self.log}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as got:
                return bool(got.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def series(self) -> str:
        """Return its /metrics, where it was started with QWEN_FIGURES_SERVICE and that port."""
        url = f"http://127.0.0.1:{self.figures_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as got:
            text: str = got.read().decode()
            return text

    def kill(self) -> None:
        """End it at once, as a node that loses power would."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it as kubelet does; it must not take long."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Stop it if it runs, and check that it never stumbled."""
        if self.is_running:
            self.stop()
        assert "Traceback" not in self.log, self.log

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=15)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
