"""A real `qwen-engine serve` in a process of its own, on a free port of loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_LISTENING = re.compile(r"Listening on 127\.0\.0\.1:(\d+)")
_START_SECONDS = 120.0


class ServerProcess:
    """Started by the constructor; `log` is a file so that a full pipe never stops the server."""

    def __init__(
        self,
        log: Path,
        *words: str,
        env: dict[str, str] | None = None,
        module: str = "qwen_engine",
    ) -> None:
        self._log = log
        command = [sys.executable, "-m", module, "serve"]
        command += ["--host", "127.0.0.1", "--port", "0", "--stats-port", "0", *words]
        if setpriv := shutil.which("setpriv"):  # ends with us even if we are killed
            command = [setpriv, "--pdeathsig", "KILL", *command]
        # Tiny models gain nothing from a second thread, and tests share their cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stderr=file, stdout=file, env=environment)
        self._url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._url:
            if match := _LISTENING.search(self.log()):
                self._url = f"http://127.0.0.1:{match[1]}"
            else:
                self._still_waiting(deadline, "listen")
        return self._url

    def wait_ready(self) -> ServerProcess:
        deadline = time.monotonic() + _START_SECONDS
        while self.get("/ready")[0] != 200:
            self._still_waiting(deadline, "become ready")
        return self

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and body, parsed if it is JSON."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as response:
                return response.status, _parse(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _parse(error.read())

    def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, _parse(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _parse(error.read())

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        """Return the exit code."""
        return self._process.wait(seconds)

    def stop(self) -> None:
        """End it, kindly first."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _still_waiting(self, deadline: float, what: str) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended before it could {what}:\n{self.log()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the server did not {what} in time:\n{self.log()}")
        time.sleep(0.05)


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
