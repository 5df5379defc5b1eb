"""The scaling loop against engines on the loopback: figures, silence, cold starts."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from qwen_operator import names, scaling
from qwen_operator.pods import PodFacts, parse_pods
from qwen_operator.readings import Readings
from qwen_operator.scaling import OLDEST_SECONDS, Scaler
from qwen_operator.scaling_facts import ScalingFacts, read_facts
from tests.unit.operator_states import pod, settle
from tests.unit.test_reconcile_autoscaling import scaled

KEY = ("ns", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stats(used: int, *, total: int = 1000) -> dict[str, Any]:
    """What an engine says."""
    blocks = {"total": total, "free": total - used, "used": used, "cached": 0}
    requests = {"running": used // 100, "waiting": 0, "swapped": 0, "finished": 0}
    return {
        **{f"num_{key}_gpu_blocks": value for key, value in blocks.items()},
        **{f"num_requests_{key}": value for key, value in requests.items()},
        "num_blocks_allocated": used,
        "num_blocks_freed": 0,
    }


class Engine:
    """One engine for all pods; its answer can be changed."""

    def __init__(self) -> None:
        self.says: Any = stats(100)
        self.asked = 0

    async def handle(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response(self.says)


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine on the port that is asked."""
    made = Engine()
    app = web.Application()
    app.router.add_get("/stats", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(names, "ENGINE_PORT", runner.addresses[0][1])
    yield made
    await runner.cleanup()


@pytest.fixture
async def world() -> AsyncIterator[tuple[Scaler, list[float]]]:
    """A scaler and its clock."""
    clock = [1000.0]
    made = Scaler(lambda: clock[0], lambda: NOW)
    yield made, clock
    await made.close()


def one_pod(name: str = "a", *, ready: bool = True, seconds: float | None = 40.0) -> PodFacts:
    return PodFacts(name, "n", "127.0.0.1", ready, True, None, f"uid-{name}", seconds)


def facts(*pods: PodFacts) -> ScalingFacts:
    about, observed = settle(scaled(targetFreeRatio=0.4))
    found = read_facts(about, observed.deployment, pods)
    assert found is not None
    return dataclasses.replace(found, replicas=len(pods), counted=len(pods))


def test_facts_come_from_the_plan_in_force_and_the_spec() -> None:
    about, observed = settle(scaled(targetFreeRatio=0.4))
    found = read_facts(about, observed.deployment, ())
    assert found is not None
    plan = about["status"]["plan"]
    assert found.capacity.blocks == plan["blocks"]["total"]
    assert found.capacity.sequences == 16
    assert found.tuning.free_ratio == 0.4
    assert 30 < found.planned_seconds < 60
    assert read_facts(about, None, ()) is None
    assert read_facts(scaled(enabled=False), observed.deployment, ()) is None
    assert read_facts(scaled(maxReplicas=0), observed.deployment, ()) is None


def test_a_start_is_from_scheduled_to_ready_of_a_pod_that_never_restarted() -> None:
    def turned(kind: str, at: str) -> dict[str, str]:
        return {"type": kind, "status": "True", "lastTransitionTime": f"2026-01-01T00:{at}Z"}

    both = [turned("PodScheduled", "00:10"), turned("Ready", "01:00")]
    [found] = parse_pods([pod("a", ready=True, conditions=both)])
    assert found.start_seconds == 50
    again = pod("a", ready=True, conditions=both, container={"restartCount": 1})
    assert parse_pods([again])[0].start_seconds is None
    assert parse_pods([pod("a", ready=True)])[0].start_seconds is None


async def test_a_full_pool_asks_for_more_and_an_old_figure_is_none(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    scaler.follow(KEY, facts(one_pod()))
    assert scaler.view(KEY) is None
    assert await scaler.refresh() == [KEY]
    [figure] = scaler.figures()
    assert (figure.namespace, figure.name, figure.replicas) == ("ns", "chat", 1)
    engine.says = stats(1000)
    clock[0] += 5
    assert await scaler.refresh() == [KEY]
    assert scaler.figures()[0].replicas > 1
    view = scaler.view(KEY)
    assert view is not None
    assert (view.reason, view.free_ratio) == ("BlocksNeeded", 0.0)
    clock[0] += OLDEST_SECONDS
    assert scaler.figures() == []


async def test_an_engine_that_talks_nonsense_is_no_figure_so_an_hpa_holds(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    engine.says = stats(10, total=0)
    scaler.follow(KEY, facts(one_pod()))
    await scaler.refresh()
    assert scaler.figures() == []
    assert scaler.view(KEY) == scaling.ScalingView(None, "NothingKnown", None, (40.0,))
    engine.says = stats(100)
    clock[0] += 5
    assert await scaler.refresh() == [KEY]
    assert len(scaler.figures()) == 1


async def test_status_is_told_a_new_ratio_only_now_and_then(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    scaler.follow(KEY, facts(one_pod()))
    await scaler.refresh()
    before = scaler.view(KEY)
    engine.says = stats(200)
    clock[0] += 5
    assert await scaler.refresh() == []
    assert scaler.view(KEY) == before
    assert scaler.tell() == [KEY]
    assert scaler.view(KEY) != before
    assert scaler.tell() == []


def test_each_start_is_measured_once_and_those_of_status_are_kept() -> None:
    scaler = Scaler(lambda: 0.0, lambda: NOW)
    known = dataclasses.replace(facts(one_pod("old", seconds=99)), cold_starts=(30.0,))
    scaler.follow(KEY, known)
    new = one_pod("new", ready=False, seconds=None)
    scaler.follow(KEY, dataclasses.replace(known, pods=(*known.pods, new)))
    ready = dataclasses.replace(known, pods=(*known.pods, one_pod("new", seconds=45)))
    scaler.follow(KEY, ready)
    flapped = dataclasses.replace(known, pods=(*known.pods, one_pod("new", seconds=900)))
    scaler.follow(KEY, flapped)
    assert scaler._scaled[KEY].cold_starts == (30.0, 45.0)
    scaler.follow(KEY, None)
    assert scaler.view(KEY) is None


async def test_what_a_scaled_pod_says_is_read_for_status_too_and_it_is_not_asked_twice(
    engine: Engine,
) -> None:
    readings = Readings()
    scaler = Scaler(lambda: 0.0, lambda: NOW, readings.hear)
    pods = (one_pod(),)
    try:
        scaler.follow(KEY, facts(*pods))
        await readings.follow(KEY, pods)  # at once, for it has just turned ready
        engine.says = stats(300)
        await scaler.refresh()
        assert engine.asked == 2
        assert await readings.refresh() == [KEY]
        assert engine.asked == 2
        told = readings.of(KEY)["a"].blocks
        assert told is not None
        assert told["used"] == 300
        engine.says = {"num_total_gpu_blocks": 0}
        await scaler.refresh()  # which makes no sense, so it counts as not heard
        await readings.refresh()
        assert engine.asked == 4
        assert readings.of(KEY)["a"].blocks is None
    finally:
        await scaler.close()
        await readings.close()
