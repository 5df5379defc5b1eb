"""The cluster, through kubectl: its flags, its credentials, its words when something is refused.

Called by the commands. Engines are reached through the API server's proxy, so nothing but
kubectl's own way in is needed. `kubectl proxy` listens on a socket in a folder of our own, for a
port would be open to everyone on the machine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_operator.errors import OperatorError

_START_SECONDS = 10.0
_ANSWER_SECONDS = 10.0


class KubectlError(OperatorError):
    """kubectl is not there, or says no; the message is its own.

    Attributes:
        is_missing: the object that was asked for does not exist.
    """

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


class EngineError(OperatorError):
    """An engine, or the API server before it, refused; carries the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the flags that say which cluster and namespace are meant."""

    flags: tuple[str, ...] = ()

    def get(self, *words: str) -> Any:
        """Return what `kubectl get WORDS` finds, parsed. Raises KubectlError."""
        return json.loads(self.run("get", *words, "-o", "json"))

    def run(self, *words: str) -> str:
        """Run kubectl and return its output. Raises KubectlError."""
        command = [_program(), *self.flags, *words]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            message = result.stderr.strip() or f"kubectl ended with {result.returncode}"
            raise KubectlError(message, is_missing="(NotFound)" in message)
        return result.stdout

    def hand_over(self, *words: str) -> int:
        """Run kubectl on our own terminal; return its exit code."""
        return subprocess.run([_program(), *self.flags, *words], check=False).returncode

    @contextlib.contextmanager
    def api(self) -> Iterator[Api]:
        """Open the API server for plain HTTP while the block lasts. Raises KubectlError."""
        with tempfile.TemporaryDirectory(prefix="kubectl-qwen-") as folder:
            path = Path(folder) / "api"
            command = [_program(), *self.flags, "proxy", f"--unix-socket={path}"]
            proxy = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            try:
                _wait_for(path, proxy)
                yield Api(path)
            finally:
                proxy.terminate()
                proxy.communicate()


@dataclass(frozen=True, slots=True)
class Api:
    """The API server behind `kubectl proxy`."""

    path: Path

    def get(self, path: str) -> Any:
        """Return what is there, parsed. Raises EngineError."""
        with self._open("GET", path) as response:
            return json.load(response)

    def text(self, path: str) -> str:
        """Return what is there as it is. Raises EngineError."""
        with self._open("GET", path) as response:
            return response.read().decode("utf-8", "replace")

    def post(self, path: str, body: dict[str, Any], *, seconds: float) -> Iterator[bytes]:
        """Send JSON; yield the answer line by line, as it comes. Raises EngineError."""
        with self._open("POST", path, json.dumps(body), seconds=seconds) as response:
            yield from response

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: str | None = None, *, seconds: float = _ANSWER_SECONDS
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self.path, timeout=seconds)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status >= 400:
                raise EngineError(response.status, _words(response.read()))
            yield response
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(0, str(error) or type(error).__name__) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def proxy_path(kind: str, namespace: str, target: str, path: str) -> str:
    """Return the API server's way to NAME:PORT of a pod or a service."""
    return f"/api/v1/namespaces/{namespace}/{kind}/{target}/proxy{path}"


def cluster_flags(*, context: str | None, kubeconfig: str | None) -> tuple[str, ...]:
    """Return kubectl's flags for what the user chose."""
    given = {"--context": context, "--kubeconfig": kubeconfig}
    return tuple(f"{flag}={value}" for flag, value in given.items() if value)


def scope(namespace: str | None, *, everywhere: bool = False) -> Sequence[str]:
    """Return kubectl's flags for a namespace; its own default where none is given."""
    if everywhere:
        return ["--all-namespaces"]
    return [f"--namespace={namespace}"] if namespace else []


def _program() -> str:
    found = shutil.which(os.environ.get("KUBECTL", "kubectl"))
    if found is None:
        raise KubectlError("kubectl is not on PATH; set KUBECTL to where it is")
    return found


def _wait_for(path: Path, proxy: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not path.exists():
        if proxy.poll() is not None:
            assert proxy.stderr is not None, "it was opened as a pipe"
            raise KubectlError(proxy.stderr.read().strip() or "kubectl proxy ended at once")
        if time.monotonic() > end:
            raise KubectlError(f"kubectl proxy did not start within {_START_SECONDS:.0f} s")
        time.sleep(0.01)


def _words(body: bytes) -> str:
    """Return the message in an error's body: Kubernetes' form, OpenAI's, or plain text."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:500]
    if isinstance(found, dict):
        error = found.get("error")
        told = error.get("message") if isinstance(error, dict) else found.get("message")
        return str(told or found)
    return str(found)
