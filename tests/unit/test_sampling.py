"""Asking engines for the autoscaler, against a real local server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from qwen_operator.sampling import Limits, Sampler, Target
from tests.unit.test_autoscaling_samples import GOOD

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engines:
    """A server whose every path answers as the test says."""

    def __init__(self) -> None:
        self.answers: dict[str, Handler] = {}
        self.asked: list[str] = []
        app = web.Application()
        app.router.add_get("/{pod}", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.match_info["pod"])
        return await self.answers[request.match_info["pod"]](request)

    def target(self, pod: str) -> Target:
        return Target(pod, str(self.server.make_url(f"/{pod}")))

    def say(self, pod: str, body: str | bytes, **more: Any) -> Target:
        data = body.encode() if isinstance(body, str) else body

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=data, **more)

        self.answers[pod] = answer
        return self.target(pod)


@pytest_asyncio.fixture
async def engines() -> AsyncIterator[Engines]:
    found = Engines()
    await found.server.start_server()
    yield found
    await found.server.close()


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


GOOD_JSON = json.dumps(GOOD)
BAD = {
    "bad value": json.dumps({**GOOD, "num_total_gpu_blocks": 0}),
    "not JSON": "<html>502</html>",
    "too large": b" " * 5000,
}


async def test_good_answers_become_samples_by_pod(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    await sampler.refresh([engines.say("a", GOOD_JSON), engines.say("b", GOOD_JSON)])
    found = sampler.fresh(["a", "b", "c"])
    assert {pod: sample.free for pod, sample in found.items()} == {"a": 60, "b": 60}
    assert not sampler.miss_counts


@pytest.mark.parametrize("cause", BAD)
async def test_a_bad_answer_is_counted_by_its_cause_and_told_once(
    engines: Engines,
    session: aiohttp.ClientSession,
    cause: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = Sampler(session, Limits(answer_bytes=4000))
    target = engines.say("a", BAD[cause])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await sampler.refresh([target])
    assert sampler.fresh(["a"]) == {}
    assert sampler.miss_counts == {cause: 3}
    assert len(caplog.records) == 1


async def test_a_redirect_is_not_followed(engines: Engines, session: aiohttp.ClientSession) -> None:
    sampler = Sampler(session)
    engines.say("b", GOOD_JSON)
    where = {"Location": str(engines.server.make_url("/b"))}
    await sampler.refresh([engines.say("a", "", status=302, headers=where)])
    assert engines.asked == ["a"]
    assert sampler.miss_counts == {"redirect": 1}


async def test_an_error_of_the_engine_is_a_miss(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    await sampler.refresh([engines.say("a", GOOD_JSON, status=503)])
    assert sampler.miss_counts == {"status": 1}


async def test_a_pod_that_cannot_be_reached_holds_up_nobody(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    nobody = Target("x", "http://127.0.0.1:1/stats")
    await sampler.refresh([nobody, engines.say("a", GOOD_JSON)])
    assert list(sampler.fresh(["x", "a"])) == ["a"]
    assert sampler.miss_counts == {"connection": 1}


async def test_an_engine_that_does_not_answer_is_given_up(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    engines.answers["a"] = hang
    sampler = Sampler(session, Limits(seconds=0.05))
    await sampler.refresh([engines.target("a")])
    release.set()
    assert sampler.miss_counts == {"timeout": 1}


async def test_figures_are_used_for_two_misses_and_stale_after_the_third(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    await sampler.refresh([engines.say("a", GOOD_JSON)])
    known = []
    for _ in range(3):
        await sampler.refresh([engines.say("a", "", status=500)])
        known.append(bool(sampler.fresh(["a"])))
    assert known == [True, True, False]


async def test_a_good_answer_ends_the_count_of_misses(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    for status in (200, 500, 500, 200, 500, 500):
        await sampler.refresh([engines.say("a", GOOD_JSON, status=status)])
    assert list(sampler.fresh(["a"])) == ["a"]


async def test_a_pod_that_is_no_longer_asked_is_forgotten(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    sampler = Sampler(session)
    await sampler.refresh([engines.say("a", GOOD_JSON)])
    await sampler.refresh([engines.say("b", GOOD_JSON)])
    assert list(sampler.fresh(["a", "b"])) == ["b"]


async def test_no_more_are_asked_at_once_than_allowed(
    engines: Engines, session: aiohttp.ClientSession
) -> None:
    open_now = most = 0
    turn = asyncio.Event()

    async def count(_: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 3:
            turn.set()
        await turn.wait()
        open_now -= 1
        return web.Response(body=GOOD_JSON)

    pods = [f"p{i}" for i in range(12)]
    engines.answers = dict.fromkeys(pods, count)
    sampler = Sampler(session, Limits(at_once=3))
    await sampler.refresh([engines.target(pod) for pod in pods])
    assert most == 3
    assert len(sampler.fresh(pods)) == 12
