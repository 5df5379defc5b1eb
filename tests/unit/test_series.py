"""The operator's own /metrics: decisions with their reasons, pods that say nothing, conditions."""

from __future__ import annotations

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qwen_operator.figures import FiguresServer
from qwen_operator.scaling import Scaler
from qwen_operator.series import OperatorSeries, Tally
from tests.unit import test_scaling
from tests.unit.test_scaling import Engine, facts, one_pod, stats

engine, world = test_scaling.engine, test_scaling.world  # fixtures
KEY = ("ns", "chat")
OF = {"namespace": "ns", "deployment": "chat"}


def read(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(text: bytes, name: str, **labels: str) -> float | None:
    return read(text).get((f"qwen_operator_{name}", frozenset(labels.items())))


def decisions(text: bytes, kind: tuple[str, str]) -> float | None:
    direction, reason = kind
    return value(text, "scaling_decisions_total", **OF, direction=direction, reason=reason)


async def test_a_decision_is_told_with_its_reason_and_counted_when_it_changes(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    assert value(scaler.series.render(), "replicas", **OF) is None
    scaler.follow(KEY, facts(one_pod()))
    engine.says = stats(100)
    await scaler.refresh()
    before = scaler.series.render()
    assert value(before, "replicas_wanted", **OF, reason="Enough") == 1
    assert value(before, "blocks", **OF, state="used") == 100
    assert value(before, "free_block_ratio", **OF) == pytest.approx(0.9)
    assert value(before, "pods", **OF, state="silent") == 0
    up, down = ("up", "BlocksNeeded"), ("down", "BlocksSpare")
    assert decisions(before, up) == decisions(before, down) == 0, "or `increase` misses the first"

    engine.says = stats(990)
    clock[0] += 5
    await scaler.refresh()
    after = scaler.series.render()
    assert value(after, "replicas_wanted", **OF, reason="BlocksNeeded") is not None
    assert decisions(after, up) == 1
    assert decisions(after, down) == 0


async def test_answers_that_are_not_used_are_counted_by_cause(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, _ = world
    scaler.follow(KEY, facts(one_pod()))
    engine.says = {"num_total_gpu_blocks": 0}
    for _ in range(3):
        await scaler.refresh()
    text = scaler.series.render()
    assert value(text, "scrape_misses_total", cause="bad value") == 3
    assert value(text, "pods", **OF, state="silent") == 1
    [why] = scaler.silent(KEY).values()
    assert why


def test_conditions_are_series_and_go_with_their_deployment() -> None:
    tally = Tally()
    condition = {"type": "Degraded", "status": "True", "reason": "OOMKilled"}
    tally.conditions[KEY] = [condition]
    tally.decisions[KEY, "up", "BlocksNeeded"] += 1
    series = OperatorSeries(tally, list, dict)
    labels = {"condition": "Degraded", "status": "True", "reason": "OOMKilled"}
    assert value(series.render(), "condition", **OF, **labels) == 1
    tally.forget(KEY)
    assert b"chat" not in series.render()


async def test_they_are_served_beside_the_figures() -> None:
    series = OperatorSeries(Tally(), list, dict)
    server = FiguresServer(0, lambda *_: None, series.render)
    await server.listen()
    url = f"http://127.0.0.1:{server.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert value(await answer.read(), "reconciliations_total", result="done") == 0
    await server.close()
