"""What KEDA is told: number and activity, or 503 where nothing recent is known."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from qwen_operator.figures import FiguresServer, Wish, figures_path
from qwen_operator.scaling import OLDEST_SECONDS, Scaler
from tests.unit import test_scaling
from tests.unit.test_scaling import Engine, facts, one_pod, stats

engine, world = test_scaling.engine, test_scaling.world  # fixtures
KEY = ("ns", "chat")


@pytest.fixture
async def told() -> AsyncIterator[dict[tuple[str, str], Wish]]:
    """What a server on port `told["port"]` says."""
    wishes: dict[Any, Any] = {}
    server = FiguresServer(0, lambda namespace, name: wishes.get((namespace, name)))
    await server.listen()
    await server.listen()  # asked again every few seconds
    wishes["port"] = server.port
    yield wishes
    await server.close()


async def ask(told: dict[Any, Any], path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{told['port']}{path}") as answer,
    ):
        return answer.status, await answer.json() if answer.status in (200, 503) else None


async def test_one_deployments_figures_are_json_and_what_is_not_known_is_503(
    told: dict[Any, Any],
) -> None:
    told[KEY] = Wish(3, True, "2026-01-01T00:00:00Z")
    assert await ask(told, figures_path(*KEY)) == (
        200,
        {"replicas": 3, "busy": 1, "at": "2026-01-01T00:00:00Z"},
    )
    status, body = await ask(told, figures_path("ns", "other"))
    assert (status, "ns/other" in body["error"]) == (503, True)
    assert (await ask(told, "/nothing"))[0] == 404


async def test_the_wish_is_the_decision_and_whether_something_was_asked(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    assert scaler.wish(*KEY) is None
    scaler.follow(KEY, facts(one_pod()))
    assert scaler.wish(*KEY) == Wish(1, True, "2026-01-01T00:00:00Z")  # not decided yet
    engine.says = stats(0)
    for _ in range(3):
        await scaler.refresh()
        clock[0] += 5
    assert scaler.wish(*KEY) == Wish(1, False, "2026-01-01T00:00:00Z")
    engine.says = stats(1000)
    await scaler.refresh()
    wish = scaler.wish(*KEY)
    assert wish is not None
    assert wish.replicas > 1
    assert wish.is_busy
    clock[0] += OLDEST_SECONDS
    assert scaler.wish(*KEY) is None


async def test_at_zero_nothing_is_wanted_until_a_request_waits(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, _ = world
    asleep = facts()
    scaler.follow(KEY, asleep)
    await scaler.refresh()
    assert scaler.wish(*KEY) == Wish(0, False, "2026-01-01T00:00:00Z")
    scaler.follow(KEY, dataclasses.replace(asleep, waiting=True))
    assert scaler.wish(*KEY) == Wish(0, True, "2026-01-01T00:00:00Z")


async def test_pods_that_say_nothing_are_no_reason_to_scale(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, _ = world
    engine.says = stats(10, total=0)
    scaler.follow(KEY, facts(one_pod()))
    await scaler.refresh()
    assert scaler.wish(*KEY) is None
    loading = facts(one_pod(ready=False, seconds=None))
    scaler.follow(KEY, loading)
    await scaler.refresh()
    assert scaler.wish(*KEY) == Wish(1, True, "2026-01-01T00:00:00Z")
    scaler.follow(KEY, facts(one_pod()))  # ready by now, and not asked yet
    assert scaler.wish(*KEY) == Wish(1, True, "2026-01-01T00:00:00Z")


async def test_idle_is_told_once_its_time_has_passed_and_never_at_zero(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    engine.says = stats(0)
    short = dataclasses.replace(facts(one_pod()), idle_seconds=30.0)
    scaler.follow(KEY, short)
    idle = []
    for _ in range(8):
        await scaler.refresh()
        view = scaler.view(KEY)
        assert view is not None
        idle.append(view.is_idle)
        clock[0] += 5
    assert idle == [False] * 6 + [True] * 2
    scaler.follow(KEY, dataclasses.replace(short, pods=(), replicas=0))
    await scaler.refresh()
    view = scaler.view(KEY)
    assert view is not None
    assert view.is_idle is False
