"""What one request may take: time, values in its body, and nothing of the event loop."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from qwen_engine.launch import launch
from qwen_engine.server.app import build_app
from qwen_engine.server.body import MAX_VALUES, read_body
from qwen_engine.server.failures import MAX_BODY_BYTES
from qwen_engine.server.settings import ServerSettings
from qwen_engine.server.state import STATE
from qwen_engine.structured import GrammarCompiler
from tests.contract.server_process import ServerProcess
from tests.contract.test_api_errors import raw
from tests.contract.test_api_failures import OPTIONS, PROMPT

Client = TestClient[Any, Any]


@pytest.fixture
async def hurried() -> AsyncIterator[Client]:
    """A server that gives every answer 0.1 s, and has a thousand tokens of context."""
    app = build_app(ServerSettings(engine=OPTIONS, request_timeout_seconds=0.1))
    async with TestClient(TestServer(app)) as client:
        await asyncio.wait_for(app[STATE].loading, 120)
        yield client


async def blocks_in_use(client: Client) -> int:
    """Return how many blocks are used once no request runs."""
    async with asyncio.timeout(10):
        while True:
            stats = await (await client.get("/stats")).json()
            if stats["num_requests_running"] == stats["num_requests_waiting"] == 0:
                used: int = stats["num_used_gpu_blocks"]
                return used


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1}], ids=["one", "three"])
async def test_an_answer_that_takes_too_long_is_a_408_and_its_blocks_are_free(
    hurried: Client, fields: dict[str, Any]
) -> None:
    response = await hurried.post("/v1/completions", json={**PROMPT, **fields})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (408, "request_timeout")
    assert "after 0.1 s" in error["message"]
    assert response.headers["X-Should-Retry"] == "false", "openai's clients would try again"
    assert await blocks_in_use(hurried) == 0
    assert (await hurried.post("/v1/completions", json={**PROMPT, "max_tokens": 2})).status == 200


async def test_a_stream_that_takes_too_long_ends_with_what_was_said_and_an_error(
    hurried: Client,
) -> None:
    response = await hurried.post("/v1/completions", json={**PROMPT, "stream": True})
    events = (await response.text()).strip().split("\n\n")
    assert json.loads(events[0][6:])["choices"][0]["text"]
    assert json.loads(events[-1][6:])["error"]["code"] == "request_timeout"
    assert await blocks_in_use(hurried) == 0


async def test_a_request_may_ask_for_less_time_but_not_for_more(hurried: Client) -> None:
    for asked, limit in (("0.02", "0.02"), ("60", "0.1")):
        headers = {"X-Request-Timeout": asked}
        response = await hurried.post("/v1/completions", json=PROMPT, headers=headers)
        assert f"after {limit} s" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_time_that_is_none_is_refused_by_name(server: ServerProcess, given: str) -> None:
    body = {"prompt": "Hi", "max_tokens": 1}
    status, answer = server.post("/v1/completions", body, **{"X-Request-Timeout": given})
    assert (status, answer["error"]["param"]) == (400, "X-Request-Timeout")


@pytest.mark.parametrize("value", ["[]", "1", '{"a":0}'])
def test_a_body_that_would_keep_the_interpreter_busy_is_refused(
    server: ServerProcess, value: str
) -> None:
    body = '{"prompt":[' + f"{value}," * (MAX_VALUES + 1) + "1]}"
    status, answer = raw(server, body.encode(), "/v1/completions")
    assert status == 400
    assert f"more than {MAX_VALUES:,}" in answer["error"]["message"]


def test_what_grammars_need_once_is_done_when_a_start_leaves_a_quiet_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[int] = []

    def prepare(_: GrammarCompiler) -> int:
        prepared.append(1)
        return 0

    monkeypatch.setattr(GrammarCompiler, "prepare", prepare)
    launched = launch(OPTIONS, lambda progress: None)
    assert not launched.finish_quietly(lambda: False)
    assert prepared == []
    assert launched.finish_quietly(lambda: True)
    assert prepared == [1]


async def test_large_bodies_are_parsed_beside_the_event_loop() -> None:
    seen: list[tuple[int, bool]] = []

    async def handler(request: web.Request) -> web.Response:
        def parse(body: object) -> int:
            size = len(str(body))
            seen.append((size, threading.current_thread() is threading.main_thread()))
            return size

        return web.json_response(await read_body(request, parse))

    app = web.Application()
    app[MAX_BODY_BYTES] = 2**20
    app.router.add_post("/", handler)
    async with TestClient(TestServer(app)) as client:
        for size in (10, 100_000):
            assert await (await client.post("/", json="x" * size)).json() == size
    assert seen == [(10, True), (100_000, False)]
