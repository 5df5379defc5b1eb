"""The activator: held requests, their bounds, streams passed through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from qwen_operator.activator.door import Door
from qwen_operator.activator.forward import open_session
from qwen_operator.activator.targets import Endpoint, Guest
from qwen_operator.spec_autoscaling import Hold
from tests.unit.operator_states import resource

METADATA = resource()["metadata"]
CHAT = "/v1/chat/completions"


async def until(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not fact():  # noqa: ASYNC110 - a fact of another task, with a deadline
            await asyncio.sleep(0.005)


class Pod:
    """An engine that streams two pieces; the second when it is let go."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()
        self.was_left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Pod": "a"})
        await response.prepare(request)
        try:
            await response.write(b"data: one\n\n")
            await self.go_on.wait()
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.was_left.set()
            raise
        return response


@pytest.fixture
async def pod() -> AsyncIterator[tuple[Pod, Endpoint]]:
    """A pod and where it listens."""
    made = Pod()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, Endpoint("127.0.0.1", runner.addresses[0][1])
    made.go_on.set()
    await runner.cleanup()


OpenDoor = Callable[[Hold], Awaitable[Door]]


@pytest.fixture
async def open_door() -> AsyncIterator[OpenDoor]:
    """A factory of open doors."""
    doors, session = [], open_session()

    async def make(hold: Hold) -> Door:
        door = Door(Guest(METADATA, "Qwen/Qwen3-0.6B", hold, 40), session, lambda: None)
        await door.open("127.0.0.1")
        doors.append(door)
        return door

    yield make
    for door in doors:
        await door.close()
    await session.close()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """What sends requests."""
    async with aiohttp.ClientSession() as session:
        yield session


def at(door: Door, path: str = CHAT) -> str:
    return f"http://127.0.0.1:{door.port}{path}"


async def test_a_request_waits_for_a_pod_and_its_answer_comes_as_it_is_made(
    open_door: OpenDoor, client: aiohttp.ClientSession, pod: tuple[Pod, Endpoint]
) -> None:
    door = await open_door(Hold(requests=2, seconds=30))
    sent = json.dumps({"prompt": "x" * 300_000}).encode()  # more than is read ahead
    asked = asyncio.create_task(client.post(at(door), data=sent))
    await until(lambda: door.waiting == 1)
    assert pod[0].bodies == []
    door.lead_to((pod[1],))
    async with await asked as answer:
        assert (answer.status, answer.headers["X-Pod"]) == (200, "a")
        assert await answer.content.readuntil(b"\n\n") == b"data: one\n\n"  # before the end is made
        pod[0].go_on.set()
        assert await answer.content.read() == b"data: [DONE]\n\n"
        assert answer.headers["Connection"] == "close"
    assert (pod[0].bodies, door.waiting) == ([sent], 0)


async def test_one_more_than_may_wait_and_one_that_waited_long_enough_are_told_to_come_again(
    open_door: OpenDoor, client: aiohttp.ClientSession
) -> None:
    door = await open_door(Hold(requests=1, seconds=1))
    first = asyncio.create_task(client.post(at(door), data=b"{}"))
    await until(lambda: door.waiting == 1)
    async with client.post(at(door), data=b"{}") as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (503, "40")
        error = (await refused.json())["error"]
        assert (error["type"], error["code"]) == ("server_error", "queue_full")
        assert "1 requests wait for a pod already" in error["message"]
    async with await first as late:
        assert (late.status, late.headers["Retry-After"]) == (503, "40")
        assert (await late.json())["error"]["code"] == "not_ready"
    assert door.waiting == 0


async def test_a_client_that_goes_gives_its_place_back_and_ends_its_stream(
    open_door: OpenDoor, client: aiohttp.ClientSession, pod: tuple[Pod, Endpoint]
) -> None:
    door = await open_door(Hold(requests=1, seconds=60))
    gone = asyncio.create_task(client.post(at(door), data=b"{}"))
    await until(lambda: door.waiting == 1)
    gone.cancel()
    await until(lambda: door.waiting == 0)
    door.lead_to((pod[1],))
    answer = await client.post(at(door), data=b"{}")
    assert await answer.content.readuntil(b"\n\n") == b"data: one\n\n"
    answer.close()
    async with asyncio.timeout(10):
        await pod[0].was_left.wait()


async def test_what_asks_by_itself_all_day_wakes_nobody(
    open_door: OpenDoor, client: aiohttp.ClientSession
) -> None:
    door = await open_door(Hold())
    async with client.get(at(door, "/v1/models")) as answer:
        [model] = (await answer.json())["data"]
        assert (answer.status, model["id"]) == (200, "Qwen/Qwen3-0.6B")
    for path in ("/metrics", "/health", "/stats", "/v1/models/other"):
        async with client.get(at(door, path)) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "40")
    assert door.waiting == 0
    page = asyncio.create_task(client.get(at(door, "/")))
    await until(lambda: door.waiting == 1)
    page.cancel()


async def test_a_pod_that_is_called_ready_and_does_not_listen_is_tried_again(
    open_door: OpenDoor, client: aiohttp.ClientSession, pod: tuple[Pod, Endpoint]
) -> None:
    door = await open_door(Hold(seconds=60))
    door.lead_to((Endpoint("127.0.0.1", 1), pod[1]))
    pod[0].go_on.set()
    async with client.post(at(door), data=b'{"a": 1}') as answer:
        assert await answer.read() == b"data: one\n\ndata: [DONE]\n\n"
    assert pod[0].bodies == [b'{"a": 1}']


async def test_a_door_that_closes_sends_who_waits_away_and_lets_a_stream_end(
    open_door: OpenDoor, client: aiohttp.ClientSession, pod: tuple[Pod, Endpoint]
) -> None:
    door = await open_door(Hold())
    waiting = asyncio.create_task(client.post(at(door), data=b"{}"))
    await until(lambda: door.waiting == 1)
    closing = asyncio.create_task(door.close())
    async with await waiting as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    await closing

    other = await open_door(Hold())
    other.lead_to((pod[1],))
    async with client.post(at(other), data=b"{}") as stream:
        closing = asyncio.create_task(other.close())
        await asyncio.sleep(0.05)
        pod[0].go_on.set()
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    await closing
