"""The operator's own series: decisions with their reason, and answers that were not believed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from qwen_operator.figures import FiguresServer
from qwen_operator.scaling import Scaler
from tests.unit import test_scaling
from tests.unit.test_scaling import KEY, Engine, facts, one_pod, stats

engine, world = test_scaling.engine, test_scaling.world  # fixtures
LABELS = 'deployment="chat",namespace="ns"'


async def test_what_is_wanted_and_why_is_told_to_prometheus(
    engine: Engine, world: tuple[Scaler, list[float]]
) -> None:
    scaler, clock = world
    server = FiguresServer(0, scaler.wish, scaler.series.render)
    await server.listen()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            assert "replicas_wanted{" not in await (await session.get("/metrics")).text()
            scaler.follow(KEY, facts(one_pod()))
            engine.says = stats(990)
            await scaler.refresh()
            clock[0] += 3
            text = await (await session.get("/metrics")).text()
    finally:
        await server.close()
    wanted = scaler.figures()[0].replicas
    reason = 'namespace="ns",reason="BlocksNeeded"'
    assert f'qwen_operator_replicas_wanted{{deployment="chat",{reason}}} {wanted}.0' in text
    assert f"qwen_operator_replicas{{{LABELS}}} 1.0" in text
    assert f"qwen_operator_free_block_ratio{{{LABELS}}} 0.01" in text
    assert f"qwen_operator_decision_age_seconds{{{LABELS}}} 3.0" in text
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize(
    ("says", "cause"),
    [({"num_total_gpu_blocks": -1}, "bad value"), ("<html>", "bad value"), ([], "bad value")],
)
async def test_an_answer_that_cannot_be_is_counted_by_its_cause(
    engine: Engine, world: tuple[Scaler, list[float]], says: object, cause: str
) -> None:
    scaler, _ = world
    scaler.follow(KEY, facts(one_pod()))
    engine.says = says
    for _ in range(3):
        await scaler.refresh()
    text = scaler.series.render().decode()
    assert f'qwen_operator_scrape_misses_total{{cause="{cause}"}} 3.0' in text
    assert "replicas_wanted{" not in text


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(hours=-1), timedelta(days=400)])
async def test_a_clock_on_the_wall_that_jumps_decides_nothing(
    engine: Engine, jump: timedelta
) -> None:
    """All windows and ages are of a clock that only goes on; the other one is only told."""
    wanted = []
    for jumps in (False, True):
        clock, wall = 1000.0, datetime(2026, 6, 1, tzinfo=UTC)
        scaler = Scaler(lambda: clock, lambda: wall)  # noqa: B023 - the very variables
        scaler.follow(KEY, facts(one_pod("a"), one_pod("b")))
        seen = []
        for step in range(60):
            engine.says = stats(900 if 10 < step < 30 else 50)
            clock, wall = clock + 5, wall + timedelta(seconds=5)
            if jumps and step == 20:
                wall += jump
            await scaler.refresh()
            seen.append(scaler.figures()[0].replicas)
        await scaler.close()
        wanted.append(seen)
    assert wanted[0] == wanted[1]
    assert max(wanted[0]) > 2
