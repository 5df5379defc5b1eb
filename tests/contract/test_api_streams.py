"""Clients that go away, and what the blocks do meanwhile.

Covers API-065 of the reported cases.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.contract.conftest import MAX_MODEL_LEN
from tests.contract.server_process import ServerProcess

LONG = {"prompt": "The quick brown fox", "max_tokens": MAX_MODEL_LEN - 30, "ignore_eos": True}


async def stats_when(server: ServerProcess, condition: Callable[[Any], bool]) -> Any:
    """Return /stats once it fulfils the condition; the test fails after ten seconds."""
    async with asyncio.timeout(10):
        while True:
            _, stats = await asyncio.to_thread(server.get, "/stats")
            if condition(stats):
                return stats
            await asyncio.sleep(0.01)


def is_running(stats: Any) -> bool:
    return bool(stats["num_requests_running"] and stats["num_used_gpu_blocks"])


def is_idle(stats: Any) -> bool:
    return stats["num_requests_running"] == 0 == stats["num_used_gpu_blocks"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_its_blocks_at_once(
    server: ServerProcess, stream: bool
) -> None:
    before = (await stats_when(server, is_idle))["generation_tokens"]
    async with aiohttp.ClientSession() as session:
        call = session.post(f"{server.url}/v1/completions", json={**LONG, "stream": stream})
        task = asyncio.ensure_future(call)
        await stats_when(server, is_running)
        task.cancel() if not stream else (await task).close()
        await asyncio.gather(task, return_exceptions=True)
    after = await stats_when(server, is_idle)
    assert after["generation_tokens"] - before < LONG["max_tokens"], "it did not run to its end"
    assert after["num_free_gpu_blocks"] == after["num_total_gpu_blocks"]


async def test_events_are_well_formed_and_end_with_done(server: ServerProcess) -> None:
    body = {**LONG, "max_tokens": 5, "stream": True}
    async with aiohttp.ClientSession() as session:
        response = await session.post(f"{server.url}/v1/completions", json=body)
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        text = await response.text()
    events = text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events)
    assert json.loads(events[-1][6:])["choices"][0]["finish_reason"] == "length"


async def test_one_client_going_away_does_not_disturb_the_others(server: ServerProcess) -> None:
    async with aiohttp.ClientSession() as session:

        async def answer(prompt: str) -> str:
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                return str((await response.json())["choices"][0]["text"])

        alone = await answer("The lazy dog")
        leaver = asyncio.create_task(answer("The quick brown fox"))
        stayer = asyncio.create_task(answer("The lazy dog"))
        await stats_when(server, is_running)
        leaver.cancel()
        assert await stayer == alone
    await stats_when(server, is_idle)
