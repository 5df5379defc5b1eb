"""The activator is replaced while it holds requests: nobody is cut, and the next are held."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.cluster.client import Cluster
from tests.cluster.polling import until
from tests.cluster.volumes import offer_folder
from tests.e2e.processes_of_pods import processes_of
from tests.e2e.release import NAMESPACE, Release
from tests.e2e.served import AVAILABLE_SECONDS, Served
from tests.models.tiny import build_tiny

pytestmark = pytest.mark.root

NUM_CLIENTS = 8
HOLD_SECONDS = 300.0
PROXY_SECONDS = 2.0  # kube-proxy looks once a second; until then the old one sends away
ACTIVATOR = "deployment/qwen-operator-activator"
NOWHERE = {"nodeSelector": {"example.org/no-such-node": "true"}}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got; a status of 0 is a connection that was refused, cut or timed out."""

    status: int
    retry_after: str | None
    body: Any


def ask(url: str, body: object = None, *, seconds: float) -> Answer:
    """Ask once, on a connection of its own."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with _DIRECT.open(request, timeout=seconds) as answer:
            return Answer(answer.status, None, json.load(answer))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers["Retry-After"], json.load(error))
    except (OSError, ValueError) as error:
        return Answer(0, None, f"{type(error).__name__}: {error}")


@dataclass
class Visitor:
    """Asks for the list of models again and again, which needs no pod, and notes each failure."""

    url: str
    num_asked: int = 0
    failures: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0  # between two answers

    def __enter__(self) -> Self:
        self._is_enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._is_enough.set()
        self._thread.join(10)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._is_enough.wait(0.02):
            answer = ask(f"{self.url}/v1/models", seconds=5)
            self.num_asked += 1
            if answer.status == 200:
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - last)
                last = time.monotonic()
            else:
                self.failures.append(f"{answer.status} {answer.body}")


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients that wait."""
    with ThreadPoolExecutor(2 * NUM_CLIENTS) as pool:
        yield pool


def test_who_waits_at_the_old_one_is_sent_away_and_who_comes_then_is_held_by_the_new(
    cluster: Cluster, to_zero: Release, models: Path, namespace: str, clients: ThreadPoolExecutor
) -> None:
    served = _apply_asleep(cluster, models, namespace)
    url, old = _routed_to(served), _activator_of(served)
    assert ask(f"{url}/v1/models", seconds=5).status == 200

    held = _call(clients, served, url)
    until(lambda: _waits(served), what="requests held by the old one", within_seconds=30)
    with Visitor(url) as visitor:
        begun = time.monotonic()
        cluster.kubectl("rollout", "restart", "-n", NAMESPACE, ACTIVATOR)
        until(lambda: _activator_of(served) != old, what="taken over", within_seconds=60)
        taken = time.monotonic() - begun
        sent_away = [client.result(timeout=60) for client in held]
        ended = time.monotonic() - begun
        time.sleep(PROXY_SECONDS)
        later = _call(clients, served, url)
        cluster.kubectl("rollout", "status", "-n", NAMESPACE, ACTIVATOR, "--timeout=60s")
        until(lambda: len(_activators(cluster)) == 1, what="the old one gone", within_seconds=200)
    print(
        f"taken over after {taken:.1f} s, the old one's sent away after {ended:.1f} s; of "
        f"{visitor.num_asked} askers meanwhile {len(visitor.failures)} failed, "
        f"at most {visitor.longest_seconds:.2f} s between two answers"
    )
    assert [(a.status, a.retry_after) for a in sent_away] == [(503, "5")] * NUM_CLIENTS, sent_away
    assert {a.body["error"]["code"] for a in sent_away} == {"shutting_down"}
    assert visitor.failures == [], "a Service that refuses although somebody could hold"
    assert visitor.num_asked > 50
    assert not any(client.done() for client in later), "held, for no pod can start yet"

    served.patch({"template": {"nodeSelector": None}})
    answers = [client.result(timeout=AVAILABLE_SECONDS) for client in later]
    assert [a.status for a in answers] == [200] * NUM_CLIENTS, answers
    assert all(a.body["choices"][0]["text"] for a in answers)


def test_who_waits_at_an_activator_that_dies_sees_it_and_soon_another_is_there(
    cluster: Cluster, to_zero: Release, models: Path, namespace: str, clients: ThreadPoolExecutor
) -> None:
    served = _apply_asleep(cluster, models, namespace)
    url = _routed_to(served)
    held = _call(clients, served, url)
    until(lambda: _waits(served), what="requests held", within_seconds=30)
    [pod] = _activators(cluster)
    [pid] = processes_of(pod, "activator")
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    cut = [client.result(timeout=30) for client in held]
    until(
        lambda: ask(f"{url}/v1/models", seconds=5).status == 200,
        what="another activator",
        within_seconds=60,
    )
    print(f"the Service refused for {time.monotonic() - begun:.1f} s")
    assert [answer.status for answer in cut] == [0] * NUM_CLIENTS, "they see that they are cut"


def _apply_asleep(cluster: Cluster, models: Path, namespace: str) -> Served:
    """Apply a model that is scaled to zero, whose pods no node takes."""
    offer_folder(cluster, models, claim="models", namespace=namespace)
    served = Served(cluster, namespace, "chat")
    scaling = {"minReplicas": 0, "maxReplicas": 1, "idleSeconds": 60}
    served.apply_tiny(build_tiny("qwen3-tied"), replicas=0, autoscaling=scaling, template=NOWHERE)
    return served


def _call(clients: ThreadPoolExecutor, served: Served, url: str) -> list[Future[Answer]]:
    """Let so many clients ask the model."""
    body = {"model": served.model(), "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
    return [
        clients.submit(ask, f"{url}/v1/completions", body, seconds=HOLD_SECONDS)
        for _ in range(NUM_CLIENTS)
    ]


def _slice(served: Served) -> dict[str, Any]:
    name = f"{served.name}-activator"
    if not served.cluster.exists("endpointslice", name, "-n", served.namespace):
        return {}
    return served.cluster.get("endpointslice", name, "-n", served.namespace)


def _routed_to(served: Served) -> str:
    """Wait until the Service leads to the activator, and return its address."""
    until(lambda: _slice(served).get("endpoints"), what="the activator's slice", within_seconds=60)
    url = served.url()
    until(
        lambda: ask(f"{url}/v1/models", seconds=5).status == 200,
        what="reached through the Service",
        within_seconds=60,
    )
    return url


def _activator_of(served: Served) -> str:
    """Return the address of the activator that has the Service."""
    found: str = _slice(served)["metadata"]["annotations"]["qwenoperator.io/activator"]
    return found


def _waits(served: Served) -> bool:
    return "qwenoperator.io/waiting-at" in _slice(served)["metadata"]["annotations"]


def _activators(cluster: Cluster) -> list[dict[str, Any]]:
    label = "app.kubernetes.io/name=qwen-operator-activator"
    found: list[dict[str, Any]] = cluster.get("pods", "-n", NAMESPACE, "-l", label)["items"]
    return found
