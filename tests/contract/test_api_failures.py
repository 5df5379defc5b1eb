"""Failures of our own making: the user gets a sentence, the log the traceback, and it goes on."""

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from qwen_engine.errors import EngineError, StepFailedError
from qwen_engine.launch import Launched, Progress, launch
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands, PlanningError
from qwen_engine.sequence import ScheduledBatch
from qwen_engine.server.app import build_app
from qwen_engine.server.run import explain_load
from qwen_engine.server.settings import ServerSettings
from qwen_engine.server.state import STATE
from qwen_engine.server.together import together
from tests.models.tiny import build_tiny
from tests.unit.test_async_engine import until

OPTIONS = EngineOptions(
    model=str(build_tiny("qwen3-tied")),
    served_model_names=("tiny",),
    device="cpu",
    demands=Demands(max_model_len=1024, num_gpu_blocks_override=128, block_size=16),
)
PROMPT = {"prompt": "The quick brown fox", "max_tokens": 900, "ignore_eos": True}


@dataclass
class Faulty:
    """The real executor, which fails as often as `faults` says."""

    executor: Any
    faults: list[Exception] = field(default_factory=list)

    def execute(self, batch: ScheduledBatch) -> list[int]:
        if self.faults:
            raise self.faults.pop(0)
        token_ids: list[int] = self.executor.execute(batch)
        return token_ids

    def take_encoded(self) -> Any:
        return self.executor.take_encoded()

    def measure(self) -> Any:
        return self.executor.measure()


@dataclass
class Bench:
    client: TestClient[Any, Any]
    faulty: Faulty

    async def complete(self, **fields: Any) -> tuple[int, str]:
        response = await self.client.post("/v1/completions", json={**PROMPT, **fields})
        return response.status, await response.text()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made: list[Faulty] = []

    def launcher(options: EngineOptions, report: Callable[[Progress], None]) -> Launched:
        launched = launch(options, report)
        made.append(Faulty(launched.engine._executor))
        launched.engine._executor = made[0]
        return launched

    app = build_app(ServerSettings(engine=OPTIONS), launcher=launcher)
    async with TestClient(TestServer(app)) as client:
        await asyncio.wait_for(app[STATE].loading, 120)
        yield Bench(client, made[0])


async def test_a_failing_step_is_a_500_without_its_details_and_the_next_request_is_served(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.faulty.faults.append(RuntimeError("secret at /home/someone"))
    status, text = await bench.complete(max_tokens=3)
    assert status == 500
    error = json.loads(text)["error"]
    assert (error["type"], error["code"]) == ("server_error", "step_failed")
    assert "secret" not in text
    assert "secret at /home/someone" in caplog.text
    assert (await bench.complete(max_tokens=3))[0] == 200


async def test_a_step_that_fails_in_mid_stream_ends_it_with_an_error_event(bench: Bench) -> None:
    response = await bench.client.post("/v1/completions", json={**PROMPT, "stream": True})
    await response.content.readany()
    bench.faulty.faults.append(RuntimeError("secret"))
    text = (await response.read()).decode()
    assert json.loads(text.strip().split("\n\n")[-1][6:])["error"]["code"] == "step_failed"
    assert "[DONE]" not in text
    assert "secret" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_step_ends_all_choices_of_its_request(bench: Bench, stream: bool) -> None:
    engine = bench.client.server.app[STATE].engine  # type: ignore[union-attr]
    fields = {**PROMPT, "n": 4, "temperature": 1, "stream": stream}
    asking = asyncio.ensure_future(bench.client.post("/v1/completions", json=fields))
    await until(lambda: engine.stats.num_running > 0)
    bench.faulty.faults.append(RuntimeError("secret"))
    text = (await (await asking).read()).decode()
    assert '"step_failed"' in text
    assert not stream or text.rstrip().splitlines()[-1].startswith('data: {"error"')
    await until(lambda: engine.stats.num_running + engine.stats.num_waiting == 0)
    assert engine.stats.num_used_blocks == 0
    assert (await bench.complete(max_tokens=3, n=2))[0] == 200


async def test_what_is_done_together_ends_together() -> None:
    waiting = asyncio.Event()
    ended: list[str] = []

    async def sibling() -> None:
        try:
            await waiting.wait()
        finally:
            ended.append("sibling")

    async def broken() -> None:
        await asyncio.sleep(0)
        raise StepFailedError("broken")

    with pytest.raises(StepFailedError):
        await together([sibling(), broken(), sibling(), broken()])
    assert ended == ["sibling"] * 2


async def test_an_engine_that_is_lost_is_reported_by_the_liveness_probe(bench: Bench) -> None:
    for _ in range(3):
        bench.faulty.faults.append(RuntimeError("device lost"))
        assert (await bench.complete(max_tokens=3))[0] == 500
    engine = bench.client.server.app[STATE].engine  # type: ignore[union-attr]
    await asyncio.wait_for(engine.died, 10)
    assert (await bench.client.get("/health")).status == 503
    assert (await (await bench.client.get("/ready")).json())["status"] == "dead"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_that_takes_longer_than_the_drain_ends_as_at_a_limit_of_tokens(
    bench: Bench, path: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    ask = {**PROMPT, **(chat if "chat" in path else {}), "n": 2, "stream": True}
    ask["stream_options"] = {"include_usage": True}
    response = await bench.client.post(path, json=ask)
    await response.content.readany()
    engine = bench.client.server.app[STATE].engine  # type: ignore[union-attr]
    assert not await engine.drain(0.2)
    text = (await response.read()).decode()
    events = text.removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert 0 < chunks.pop()["usage"]["completion_tokens"] < 1800
    ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"] is not None]
    assert sorted(end["index"] for end in ends) == [0, 1]
    assert {(end["finish_reason"], end["stop_reason"]) for end in ends} == {("length", "shutdown")}


async def test_a_whole_answer_that_takes_longer_than_the_drain_may_be_asked_for_elsewhere(
    bench: Bench,
) -> None:
    asked = asyncio.create_task(bench.client.post("/v1/completions", json=PROMPT))
    engine = bench.client.server.app[STATE].engine  # type: ignore[union-attr]
    await until(lambda: engine.stats is not None and engine.stats.num_running > 0)
    assert not await engine.drain(0.0)
    for response in (await asked, await bench.client.post("/v1/completions", json=PROMPT)):
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert response.headers["Connection"] == "close", "or the next try comes here again"
        assert (await response.json())["error"]["code"] == "shutting_down"
    metrics = await (await bench.client.get("/metrics")).text()
    assert 'finished_reason="abort",model_name="tiny"} 1.0' in metrics


async def test_what_nobody_expected_is_a_500_with_its_traceback_in_the_log_only(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("qwen_engine.server.completions_route.parse_completion", broken)
    with caplog.at_level(logging.ERROR):
        status, text = await bench.complete()
    assert (status, json.loads(text)["error"]["code"]) == (500, "internal_error")
    assert "secret" not in text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", b"\x08"), ("model.safetensors", b"\xff" * 4096),
     ("tokenizer.json", b"{"), ("config.json", b"[]"), ("generation_config.json", b"{")],
)  # fmt: skip
async def test_a_damaged_model_folder_ends_the_load_with_one_line_that_names_the_file(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(build_tiny("qwen3-tied"), folder)
    (folder / name).write_bytes(content)
    settings = ServerSettings(engine=replace(OPTIONS, model=str(folder)))
    app = build_app(settings)
    async with TestClient(TestServer(app)) as client:
        await asyncio.wait([app[STATE].loading], timeout=60)
        error = app[STATE].loading.exception()
        assert error is not None
        line = explain_load(error)
        assert (await client.get("/health")).status == 200
        assert (await client.get("/ready")).status == 503
    assert name.partition(".")[0] in line
    assert isinstance(error, EngineError | PlanningError), "it is foreseen"
    assert "\n" not in line
