"""Swap space, priorities and salts, as a client and a dashboard see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.server_process import ServerProcess
from tests.models.tiny import build_tiny


@pytest.fixture
def swapping(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server whose 12 blocks are too few for what it is asked, with swap space for all of it."""
    return start_server(
        str(build_tiny("qwen3-tied")), "--device", "cpu", "--dtype", "float32",
        "--max-model-len", "128", "--block-size", "16", "--max-num-seqs", "8",
        "--num-gpu-blocks-override", "12", "--swap-space", "0.01", "--preemption-mode", "swap",
        "--served-model-name", "tiny",
    ).wait_ready()  # fmt: skip


async def test_requests_are_swapped_and_nothing_is_left_behind(swapping: ServerProcess) -> None:
    total = swapping.get("/stats")[1]["num_total_cpu_blocks"]
    assert (
        total == int(0.01 * 2**30) // swapping.get("/stats")[1]["plan"]["blocks"]["bytesPerBlock"]
    )
    bodies = [
        {"prompt": [seed] * 20, "max_tokens": 80, "ignore_eos": True, "temperature": 0}
        for seed in range(8)
    ]
    alone = [swapping.post("/v1/completions", body)[1]["choices"] for body in bodies]
    async with aiohttp.ClientSession() as session:
        together = await asyncio.gather(*(_ask(session, swapping, body) for body in bodies))
    assert [body["choices"] for body in together] == alone
    stats = swapping.get("/stats")[1]
    assert stats["num_blocks_swapped_out"] > 0
    assert stats["num_blocks_swapped_in"] > 0
    assert stats["num_requests_swapped"] == stats["num_used_cpu_blocks"] == 0
    assert stats["num_free_cpu_blocks"] == total
    assert stats["measured"]["swap"] == total * stats["plan"]["blocks"]["bytesPerBlock"]
    samples = _samples(swapping)
    assert samples["qwen_swap_blocks", "total"] == samples["qwen_swap_blocks", "free"] == total
    assert samples["qwen_swap_out_blocks_total", ""] == stats["num_blocks_swapped_out"]
    assert samples["qwen_swap_in_blocks_total", ""] == stats["num_blocks_swapped_in"]
    assert samples["qwen_requests_swapped", ""] == 0


async def _ask(
    session: aiohttp.ClientSession, server: ServerProcess, body: dict[str, Any]
) -> dict[str, Any]:
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        return found


def _samples(server: ServerProcess) -> dict[tuple[str, str], float]:
    text = server.get("/metrics")[1]
    return {
        (sample.name, sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_prefix_is_shared_only_under_the_same_salt(server: ServerProcess) -> None:
    def cached(**fields: Any) -> int:
        body = {"prompt": list(range(200, 240)), "max_tokens": 1, **fields}
        usage = server.post("/v1/completions", body)[1]["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(), cached(cache_salt="a"), cached(cache_salt="a")] == [0, 0, 32]
    assert [cached(cache_salt="b"), cached(), cached(priority=3)] == [0, 32, 32]


@pytest.mark.parametrize(
    ("field", "value"), [("cache_salt", ""), ("cache_salt", 5), ("priority", "high")]
)
def test_a_wrong_salt_or_priority_is_named(server: ServerProcess, field: str, value: Any) -> None:
    status, body = server.post("/v1/completions", {"prompt": [1], field: value})
    assert (status, body["error"]["param"]) == (400, field)
