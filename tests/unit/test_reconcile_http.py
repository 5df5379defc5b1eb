"""The cluster over HTTP: renewed logins, pages, errors by their kind. A server on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from qwen_operator import credentials, handlers
from qwen_operator.cluster import DEPLOYMENT, EVENT, NODE, POD, SCALED_OBJECT, SERVICE
from qwen_operator.errors import RefusedError, UnavailableError
from qwen_operator.http_cluster import Connection, HttpCluster
from tests.unit.operator_states import resource

Answer = tuple[int, dict[str, Any] | str]


@asynccontextmanager
async def api(
    answer: Callable[[web.Request, Any], Answer], tokens: tuple[str, ...] = ("t",)
) -> AsyncIterator[HttpCluster]:
    """Serve answers; each login takes the next token."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        status, content = answer(request, body)
        if isinstance(content, str):
            return web.Response(text=content, status=status)
        return web.json_response(content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    left = list(tokens)
    url = str(server.make_url("")).rstrip("/")
    cluster = HttpCluster(
        lambda: Connection(url, {"Authorization": f"Bearer {left.pop(0) if left else 'none'}"})
    )
    try:
        yield cluster
    finally:
        await cluster.close()
        await server.close()


async def test_a_token_that_has_run_out_is_renewed_and_the_request_made_again() -> None:
    seen = []

    def answer(request: web.Request, _: Any) -> Answer:
        seen.append(request.headers["Authorization"])
        return (200, {"items": [], "metadata": {}}) if "new" in seen[-1] else (401, {})

    async with api(answer, tokens=("old", "new")) as cluster:
        assert await cluster.fetch_all(NODE) == []
    assert seen == ["Bearer old", "Bearer new"]


async def test_a_token_that_stays_bad_is_refused_not_retried_for_ever() -> None:
    async with api(lambda *_: (401, {"message": "Unauthorized"})) as cluster:
        with pytest.raises(RefusedError, match="Unauthorized"):
            await cluster.fetch_all(NODE)


async def test_long_lists_come_in_pages() -> None:
    def answer(request: web.Request, _: Any) -> Answer:
        assert request.query["labelSelector"] == "a=b"
        follow = {"continue": "more"} if "continue" not in request.query else {}
        return 200, {"items": [{"n": len(follow)}], "metadata": follow}

    async with api(answer) as cluster:
        assert await cluster.fetch_all(POD, "ns", selector="a=b") == [{"n": 1}, {"n": 0}]


async def test_whether_a_kind_is_served_is_asked_of_its_group() -> None:
    def answer(request: web.Request, _: Any) -> Answer:
        assert request.path == "/apis/keda.sh/v1alpha1"
        return 200, {"resources": [{"name": "scaledjobs"}, {"name": kind}]}

    kind = "scaledobjects"
    async with api(answer) as cluster:
        assert await cluster.serves(SCALED_OBJECT) is True
        kind = "others"
        assert await cluster.serves(SCALED_OBJECT) is False
    # an unknown group is answered in plain words, not with a Status object
    async with api(lambda *_: (404, "404 page not found")) as cluster:
        assert await cluster.serves(SCALED_OBJECT) is False
        assert await cluster.fetch(SCALED_OBJECT, "ns", "chat") is None
    async with api(lambda *_: (503, {})) as cluster:
        with pytest.raises(UnavailableError):
            await cluster.serves(SCALED_OBJECT)


async def test_a_number_is_set_through_scale_and_only_on_what_was_seen() -> None:
    seen = []

    def answer(request: web.Request, body: Any) -> Answer:
        seen.append((request.method, request.path, body))
        return (409, {"reason": "Conflict", "message": "modified"}) if len(seen) > 1 else (200, {})

    about = resource()
    about["metadata"]["resourceVersion"] = "7"
    async with api(answer) as cluster:
        await cluster.scale(about, 0)
        with pytest.raises(RefusedError, match="modified"):
            await cluster.scale(about, 1)
    path = "/apis/qwenoperator.io/v1alpha1/namespaces/ns/qwendeployments/chat/scale"
    body = {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 0}}
    assert seen[0] == ("PATCH", path, body)


async def test_what_is_not_there_is_none() -> None:
    async with api(lambda *_: (404, {"reason": "NotFound"})) as cluster:
        assert await cluster.fetch(SERVICE, "ns", "x") is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, RefusedError), (409, RefusedError), (422, RefusedError), (429, UnavailableError),
     (500, UnavailableError), (503, UnavailableError)],
)  # fmt: skip
async def test_errors_are_told_apart_by_whether_trying_again_helps(
    status: int, kind: type[Exception]
) -> None:
    async with api(lambda *_: (status, {"reason": "R", "message": "words"})) as cluster:
        with pytest.raises(kind, match="words"):
            await cluster.fetch(DEPLOYMENT, "ns", "x")


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    cluster = HttpCluster(lambda: Connection("http://127.0.0.1:1", {}))
    with pytest.raises(UnavailableError, match="GET /api/v1/nodes"):
        await cluster.fetch_all(NODE)
    await cluster.close()


async def test_an_older_crd_is_named_as_such() -> None:
    words = ".status.plan.news: field not declared in schema"
    async with api(lambda *_: (500, {"message": words})) as cluster:
        with pytest.raises(UnavailableError, match="CRD is older than this operator"):
            await cluster.apply_status(resource(), {})


async def test_status_is_applied_to_the_very_object_and_by_our_name() -> None:
    def answer(request: web.Request, body: Any) -> Answer:
        assert request.path.endswith("/namespaces/ns/qwendeployments/chat/status")
        assert (request.query["fieldManager"], request.query["force"]) == ("qwen-operator", "true")
        assert request.content_type == "application/apply-patch+yaml"
        assert body["metadata"] == {"name": "chat", "namespace": "ns", "uid": "uid-1"}
        return 200, {}

    async with api(answer) as cluster:
        await cluster.apply_status(resource(), {"ready": "0/1"})


async def test_only_the_very_object_is_deleted_and_one_that_is_gone_is_no_error() -> None:
    seen = []
    codes = [200, 404, 409, 403]

    def answer(request: web.Request, body: Any) -> Answer:
        seen.append((request.method, request.path, body))
        return codes[len(seen) - 1], {}

    metadata = {"namespace": "ns", "name": "chat", "uid": "u1"}
    live = {"kind": "HorizontalPodAutoscaler", "metadata": metadata}
    async with api(answer) as cluster:
        for _ in range(3):
            await cluster.delete(live)
        with pytest.raises(RefusedError):
            await cluster.delete(live)
    path = "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers/chat"
    assert seen[0] == ("DELETE", path, {"preconditions": {"uid": "u1"}})


async def test_an_event_that_is_there_is_counted_not_repeated() -> None:
    calls = []

    def answer(request: web.Request, body: Any) -> Answer:
        calls.append((request.method, body))
        if request.method == "POST":
            return 409, {"reason": "AlreadyExists"}
        return 200, {"count": 4}

    event = {"metadata": {"name": "e", "namespace": "ns"}, "lastTimestamp": "now"}
    async with api(answer) as cluster:
        await cluster.record(event)
    assert calls[-1] == ("PATCH", {"count": 5, "lastTimestamp": "now"})


async def test_a_refusal_in_plain_words_is_a_refusal() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    cluster = HttpCluster(lambda: Connection(str(server.make_url("")).rstrip("/"), {}))
    try:
        with pytest.raises(RefusedError, match="HTTP 404"):
            await cluster.fetch_all(POD, "ns")
    finally:
        await cluster.close()
        await server.close()


async def test_it_waits_for_the_crd_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handlers, "_RETRY_SECONDS", 0.01)
    answers = [(404, {"message": "no such resource"})] * 2

    def answer(*_: Any) -> Answer:
        return answers.pop() if answers else (200, {"items": [], "metadata": {}})

    async with api(answer) as cluster:
        await handlers._wait_for_crd(cluster, "ns")
    assert answers == []
    assert "install the CRD" in caplog.text


@pytest.mark.parametrize(
    ("env", "server"),
    [
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "https://10.0.0.1:443"),
        (
            {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"},
            "https://[fd00::1]:6443",
        ),
    ],
)
def test_in_a_pod_the_api_server_is_found_without_dns(
    env: dict[str, str], server: str | None
) -> None:
    assert credentials._server(env) == server


def test_kopf_is_told_to_write_nothing() -> None:
    settings = handlers.build_kopf_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    selectors = settings.watching.label_selectors
    assert {selectors[key].split(",")[0] for key in selectors} == {"qwenoperator.io/deployment"}
    assert isinstance(settings, kopf.OperatorSettings)
    assert EVENT.path("ns") == "/api/v1/namespaces/ns/events"
