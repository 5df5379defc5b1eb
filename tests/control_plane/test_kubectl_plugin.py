"""`kubectl qwen` as kubectl finds it, against a real API server and through its proxy."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import CommandError
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, L4_LABELS, SAMPLES, SECONDS, Qwen

GPU = {"nvidia.com/gpu": "1"}
Plugin = Callable[..., str]


@pytest.fixture
def plugin(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    """`kubectl qwen WORDS` in the test's namespace. Raises CommandError."""
    here = Path(sys.executable).parent
    assert (here / "kubectl-qwen").exists(), "the package's entry point is not installed"
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECTL", str(qwen.cluster.kubectl_path))

    def run(*words: str, stdin: str | None = None) -> str:
        scope = () if words[0] == "explain" else ("-n", qwen.namespace)
        return qwen.cluster.kubectl("qwen", *words, *scope, stdin=stdin)

    return run


def test_explain_says_of_a_sample_what_the_operator_then_plans(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory, plugin: Plugin
) -> None:
    kwok_nodes("l4-0", labels=L4_LABELS, allocatable=GPU)
    [sample] = [path for path in SAMPLES if path.stem == "qwen3-8b"]
    [answer] = json.loads(plugin("explain", "-f", str(sample), "-o", "json"))
    qwen.kubectl("apply", "-f", str(sample))
    name = yaml.safe_load(sample.read_text("utf-8"))["metadata"]["name"]
    qwen.wait_for(name, "Planned", "PlanFits")
    plan = json.loads(plugin("plan", name, "-o", "json"))
    assert plan == answer["plan"]
    assert "nvidia.com/gpu.memory of node l4-0" in plugin("plan", name)

    until(lambda: qwen.status(name)["ready"] == "1/1", what="ready", within_seconds=SECONDS)
    text = plugin("status", name)
    assert "PlanFits" in text
    assert "1/1 pods ready" in text


def test_a_refusal_is_the_conditions_sentence_with_exit_code_1(
    qwen: Qwen, operator: OperatorProcess, plugin: Plugin
) -> None:
    spec = {**CPU, "model": {"id": "Qwen/Qwen9-1T"}}
    qwen.apply("chat", **spec)
    message = qwen.wait_for("chat", "Planned", "UnknownModel")["message"]
    with pytest.raises(CommandError) as refused:
        plugin("plan", "chat")
    assert refused.value.returncode == 1
    assert " ".join(refused.value.stdout.split()).endswith(message)
    with pytest.raises(CommandError) as missing:
        plugin("status", "nobody")
    assert missing.value.returncode == 1
    assert 'qwendeployments.qwenoperator.io "nobody" not found' in missing.value.stderr


class _Engine(BaseHTTPRequestHandler):
    """As much of an engine as `top` and `chat` need."""

    def do_GET(self) -> None:
        counts = {"total": 100, "free": 90, "used": 10, "cached": 5}
        body = {f"num_{key}_gpu_blocks": value for key, value in counts.items()}
        body |= {"num_used_cpu_blocks": 0, "num_total_cpu_blocks": 0}
        body |= {f"num_requests_{key}": 0 for key in ("running", "waiting", "swapped")}
        self._send(json.dumps(body))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = f"You said {asked['messages'][-1]['content']}".split(" ")
        events = [{"choices": [{"delta": {"content": f"{word} "}}]} for word in words]
        self._send("".join(f"data: {json.dumps(event)}\n\n" for event in events))

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[tuple[str, int]]:
    """An engine on this machine's own address: the API server's proxy refuses loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.18.0.1", 9))  # sends nothing, but chooses the address
        address = probe.getsockname()[0]
    server = ThreadingHTTPServer((address, 0), _Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[0], server.server_address[1]
    server.shutdown()
    server.server_close()


def engine_pod(name: str, port: int, node: str) -> dict[str, Any]:
    """A pod as the operator makes them, by hand, so that the engine's port can be any."""
    container = {"name": "engine", "image": "x", "ports": [{"name": "http", "containerPort": port}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-0", "labels": {"qwenoperator.io/deployment": name}},
        "spec": {"nodeName": node, "containers": [container]},
    }


def test_top_and_chat_reach_the_engine_through_the_api_server(
    qwen: Qwen,
    operator: OperatorProcess,
    kwok_nodes: NodeFactory,
    plugin: Plugin,
    engine: tuple[str, int],
) -> None:
    address, port = engine
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=0)
    until(lambda: qwen.get("service", "chat"), what="the Service", within_seconds=SECONDS)
    qwen.cluster.apply(engine_pod("chat", port, "plain-0"), namespace=qwen.namespace)
    until(
        lambda: qwen.get("pod", "chat-0").get("status", {}).get("phase") == "Running",
        what="the simulated pod",
        within_seconds=SECONDS,
    )
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    patch = json.dumps({"status": status})
    qwen.kubectl("patch", "pod", "chat-0", "--subresource=status", "--type=merge", "-p", patch)

    rows = plugin("top", "chat").splitlines()
    assert rows[1].split() == ["chat-0", "█·········", "90", "10", "5", "100", "0", "0", "0"]

    def answer() -> str:
        try:
            return plugin("chat", "chat", "hello there")
        except CommandError as error:
            return "" if "does not answer" in error.stderr else str(error)

    said = until(answer, what="endpoints of the Service", within_seconds=SECONDS)
    assert said.strip() == "You said hello there"
