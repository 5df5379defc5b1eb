"""A real Prometheus scrapes a real engine and the operator: no shipped query comes back empty."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Cluster
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.contract.server_process import ServerProcess
from tests.control_plane import queries
from tests.control_plane.engines import free_address, give_address
from tests.control_plane.operator_process import OperatorProcess, free_port
from tests.control_plane.prometheus import Prometheus
from tests.control_plane.qwen import CPU, Qwen
from tests.models.tiny import build_tiny
from tests.setup.debian import find_program

_SEEN_SECONDS = 120.0


class AddressedEngine(ServerProcess):
    """A real engine where a pod's would be: port 8000 of an address of its own."""

    def __init__(self, log: Path) -> None:
        self.address = free_address()
        super().__init__(
            log, str(build_tiny("qwen3-tied")), "--host", self.address, "--port", "8000",
            "--served-model-name", "tiny", "--device", "cpu", "--dtype", "float32",
            "--max-model-len", "512", "--block-size", "16", "--num-gpu-blocks-override", "64",
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://{self.address}:8000"

    def is_ready(self) -> bool:
        """Ask once."""
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return self.get("/ready")[0] == 200
        return False


class Load:
    """Clients that come and go: blocks fill up and empty again."""

    def __init__(self, engine: ServerProcess) -> None:
        self._engine, self._ended = engine, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(12)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        prompt = "The quick brown fox jumps over the lazy dog. " * 4
        while not self._ended.wait(0.3 * number):
            body = {"prompt": prompt, "max_tokens": 300, "ignore_eos": True}
            self._engine.post("/v1/completions", body)

    def end(self) -> None:
        """Let the clients go."""
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[AddressedEngine]:
    """A real engine under load."""
    process = AddressedEngine(tmp_path / "engine.log")
    try:
        until(process.is_ready, what="the engine ready", within_seconds=120)
        load = Load(process)
        yield process
        load.end()
    finally:
        process.stop()


@pytest.fixture
def operator_port(served: Cluster, namespace: str, tmp_path: Path) -> Iterator[int]:
    """The port of an operator's /metrics."""
    port = free_port()
    process = OperatorProcess(served, tmp_path)
    process.start(QWEN_FIGURES_SERVICE=f"{namespace}/figures", QWEN_FIGURES_PORT=str(port))
    yield port
    process.end()


@pytest.fixture
def prometheus(
    qwen: Qwen,
    engine: AddressedEngine,
    operator_port: int,
    kwok_nodes: NodeFactory,
    tmp_path: Path,
) -> Iterator[Prometheus]:
    """Prometheus on `chat`, whose pod is the engine; `mute` has a silent pod, `wrong` no plan."""
    program = find_program("prometheus", "prometheus")
    if program is None:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("prometheus missing: `make test` gets it from Debian's package prometheus")
    kwok_nodes("plain-0")
    for name, address in (("chat", engine.address), ("mute", free_address())):
        qwen.apply(name, **CPU, autoscaling={"maxReplicas": 3, "provider": "None"})
        qwen.wait_for(name, "Available", "Serving")
        [pod] = [p for p in qwen.all("pod") if p["metadata"]["name"].startswith(f"{name}-")]
        give_address(qwen, pod["metadata"]["name"], address)
    qwen.apply("wrong", model={"id": "Qwen/Qwen9-1T"}, gpu={"count": 0})
    qwen.wait_for("wrong", "Planned", "UnknownModel")
    labels = {"namespace": qwen.namespace, "deployment": "chat", "pod": "chat-0"}
    targets = {f"{engine.address}:8000": labels, f"127.0.0.1:{operator_port}": {}}
    process = Prometheus(program, tmp_path, targets, queries.RULES)
    yield process
    process.close()


def test_every_query_finds_series_and_every_label_that_it_reads_is_there(
    qwen: Qwen, prometheus: Prometheus
) -> None:
    shipped = queries.of_the_dashboard()
    shipped |= queries.of_the_rules("record")
    shipped |= {name: name for name in queries.of_the_rules("record")}
    shipped |= queries.of_the_adapter(qwen.namespace, "chat")
    wanting = dict(shipped)

    def nothing_wanting() -> bool:
        for name, query in list(wanting.items()):
            if prometheus.query(query):
                del wanting[name]
        return not wanting

    with contextlib.suppress(TimeoutError):
        until(nothing_wanting, what="all", within_seconds=_SEEN_SECONDS, every_seconds=1)
    assert wanting == {}

    alerts = {n: queries.without_its_bound(q) for n, q in queries.of_the_rules("alert").items()}
    unknown = {}
    for name, query in {**shipped, **alerts}.items():
        found = [prometheus.labels_of(metric) for metric in queries.metrics_in(query)]
        missing = queries.labels_in(query) - set[str]().union(*found)
        if missing or not all(found):
            unknown[name] = (query, missing)
    assert unknown == {}
    odd = prometheus.query(shipped["Conditions that are not as they should be A"])
    named = {(s["metric"]["deployment"], s["metric"]["condition"]) for s in odd}
    assert ("wrong", "Planned") in named
    assert "mute" not in {deployment for deployment, _ in named}, "it is settled, and serves"
    # and neither check would pass whatever is asked
    assert prometheus.query("vllm:gpu_cache_usage_perc") == []
    assert "model" not in prometheus.labels_of("vllm:kv_cache_usage_perc")


def test_what_a_query_reads_is_found_in_its_text() -> None:
    query = 'sum by (namespace, le) (rate(vllm:x_bucket{model="vllm:y"}[5m]))'
    query += " / ignoring (kind) qwen:z"
    assert queries.metrics_in(query) == {"vllm:x_bucket", "qwen:z"}
    assert queries.labels_in(query) == {"namespace", "le", "model", "kind"}
    assert queries.without_its_bound("qwen:z < 0.05") == "qwen:z"
    assert len(queries.of_the_dashboard()) > 25
