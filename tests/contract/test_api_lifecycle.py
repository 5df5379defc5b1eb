"""A server's life: loading, refusing, draining, and failing with one clear line."""

import asyncio
import json
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.contract.conftest import API_KEY
from tests.contract.server_process import ServerProcess
from tests.models.tiny import build_tiny

Start = Callable[..., ServerProcess]
KEY = {"Authorization": f"Bearer {API_KEY}"}
PROMPT = {"prompt": "The quick brown fox", "ignore_eos": True}


def test_without_the_key_nothing_that_costs_is_done(guarded: ServerProcess) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            status, body = guarded.post(path, PROMPT, **headers)
            assert status == 401
            assert body["error"]["code"] == "invalid_api_key"
    assert guarded.get("/v1/models")[0] == 401
    assert guarded.post("/v1/completions", {**PROMPT, "max_tokens": 1}, **KEY)[0] == 200


def test_probes_numbers_and_the_page_need_no_key(guarded: ServerProcess) -> None:
    for path in ("/health", "/ready", "/metrics", "/stats", "/version", "/chat.html"):
        assert guarded.get(path)[0] == 200


async def test_more_than_may_wait_get_429_with_a_time_to_come_back(guarded: ServerProcess) -> None:
    body = {**PROMPT, "max_tokens": 300}
    async with aiohttp.ClientSession(guarded.url, headers=KEY) as session:

        async def ask() -> tuple[int, str | None, Any]:
            async with session.post("/v1/completions", json=body) as response:
                retry = response.headers.get("Retry-After")
                return response.status, retry, await response.json()

        answers = await asyncio.gather(*(ask() for _ in range(5)))
    refused = [answer for answer in answers if answer[0] == 429]
    assert sorted(answer[0] for answer in answers) == [200, 200, 429, 429, 429]
    for _, retry, error in refused:
        assert retry is not None
        assert 1 <= int(retry) <= 60
        assert error["error"]["code"] == "queue_full"
    counted = re.search(r"vllm:admission_rejections_total{[^}]*} (\S+)", guarded.get("/metrics")[1])
    assert counted is not None
    assert float(counted[1]) >= 3
    assert guarded.post("/v1/completions", {**PROMPT, "max_tokens": 1}, **KEY)[0] == 200


def test_more_prompts_than_may_ever_wait_are_refused_with_the_bound(guarded: ServerProcess) -> None:
    status, body = guarded.post("/v1/completions", {"prompt": ["a", "b", "c"]}, **KEY)
    assert status == 400
    assert "at most 2" in body["error"]["message"]


async def test_a_server_that_loads_is_alive_but_not_ready_and_one_that_stops_drains(
    start_server: Start,
) -> None:
    words = [str(build_tiny("qwen3-tied")), "--device", "cpu", "--max-model-len", "1K"]
    server = start_server(*words, "--shutdown-timeout", "60")
    assert server.get("/health")[0] == 200
    status, state = server.get("/ready")
    if status == 503:  # it may be faster than we are
        assert state["status"] in ("starting", "loading")
        status, body = server.post("/v1/completions", PROMPT)
        assert status in (200, 503), body
    await asyncio.to_thread(server.wait_ready)
    async with aiohttp.ClientSession(server.url) as session:
        long = {**PROMPT, "max_tokens": 900, "stream": True}
        response = await session.post("/v1/completions", json=long)
        await response.content.readany()
        server.signal(signal.SIGTERM)
        refusal = await refused_while_draining(session)
        assert refusal["error"]["code"] == "shutting_down"
        async with session.get("/ready") as ready:
            assert ready.status == 503
        text = (await response.read()).decode()
        assert text.endswith("data: [DONE]\n\n"), "the running answer was finished"
        assert json.loads(text.split("\n\n")[-3][6:])["choices"][0]["finish_reason"] == "length"
    assert await asyncio.to_thread(server.wait) == 0


async def refused_while_draining(session: aiohttp.ClientSession) -> Any:
    """Ask until the signal has arrived; return the refusal."""
    async with asyncio.timeout(10):
        while True:
            body = {**PROMPT, "max_tokens": 1}
            async with session.post("/v1/completions", json=body) as response:
                if response.status == 503:
                    assert int(response.headers["Retry-After"]) > 0
                    assert response.headers["Connection"] == "close"
                    return await response.json()


def failure(server: ServerProcess) -> str:
    """Return the last line of a server that could not start."""
    assert server.wait(120) == 1
    assert "Traceback" not in server.log()
    return server.log().strip().splitlines()[-1]


def test_a_missing_folder_and_an_unknown_model_end_with_one_line(
    start_server: Start, tmp_path: Path
) -> None:
    assert "no such folder" in failure(start_server(str(tmp_path / "nowhere")))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    line = failure(start_server("org/unheard-of", env=offline))
    assert "org/unheard-of" in line
    assert "HF_HUB_OFFLINE is set" in line


def test_a_context_that_the_model_does_not_have_ends_with_the_figures(start_server: Start) -> None:
    words = [str(build_tiny("qwen3-tied")), "--device", "cpu", "--max-model-len", "64K"]
    line = failure(start_server(*words))
    assert "65536" in line.replace(",", "")
    assert "1024" in line.replace(",", "")


def test_the_appliance_says_its_plan_and_answers_stats_on_a_second_port_too(
    start_server: Start,
) -> None:
    """All by itself: a model and nothing else, as `docker run … serve MODEL` has it."""
    port = free_port()
    server = start_server(str(build_tiny("qwen3-tied")), "--device", "cpu", "--stats-port", port)
    server.wait_ready()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=30) as response:
        stats = json.loads(response.read())
    assert stats["num_total_gpu_blocks"] == stats["num_free_gpu_blocks"] > 0
    for flag in ("--block-size", "--max-model-len", "--gpu-memory-utilization", "--max-num-seqs"):
        assert re.search(rf"Plan: {flag} \S+ \(.+\)", server.log()), "each with its reason"


def free_port() -> str:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return str(it.getsockname()[1])


def test_a_second_port_that_is_taken_is_a_warning_and_the_server_serves(
    start_server: Start,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = [str(build_tiny("qwen3-tied")), "--device", "cpu", "--max-model-len", "512"]
        server = start_server(*words, "--stats-port", port).wait_ready()
    assert server.get("/stats")[0] == 200
    assert f"Port {port} is not answered too (--stats-port)" in server.log()


def test_a_port_that_is_taken_is_named(start_server: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = failure(start_server(str(build_tiny("qwen3-tied")), "--port", port))
    assert f"cannot listen on 127.0.0.1:{port}" in line
