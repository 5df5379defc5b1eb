"""The thread that steps and the requests around it, with a scripted engine instead of a model."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from qwen_engine.async_engine import AsyncEngine
from qwen_engine.engine_stats import EngineStats
from qwen_engine.errors import (
    CannotEverFitError,
    NotReadyError,
    QueueFullError,
    RequestTimeoutError,
    ShuttingDownError,
    StepFailedError,
)
from qwen_engine.generation import Course, Deadline, EndReason
from qwen_engine.llm_engine import StepOutput
from qwen_engine.sequence import FinishReason, SamplingParams, SchedulingParams


@dataclass
class ScriptedEngine:
    """Each step gives every request its next number as a token; `gate` closed holds a step up."""

    requests: dict[str, tuple[int, SamplingParams]] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    threads: set[str] = field(default_factory=set)
    num_begun: int = 0
    num_done: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        scheduling: SchedulingParams,
        *,
        media: object = None,
    ) -> None:
        self.threads.add(threading.current_thread().name)
        if len(prompt) > 10:
            raise CannotEverFitError(num_tokens=len(prompt), needed=9, total=3, block_size=4)
        self.requests[request_id] = (0, params)

    def abort(self, request_id: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.requests.pop(request_id, None)

    def step(self) -> list[StepOutput]:
        self.threads.add(threading.current_thread().name)
        self.num_begun += 1
        assert self.gate.wait(10)
        self.num_done += 1
        if self.failures:
            raise self.failures.pop(0)
        return [self._advance(request_id) for request_id in list(self.requests)]

    def _advance(self, request_id: str) -> StepOutput:
        count, params = self.requests[request_id]
        is_last = count + 1 == params.max_tokens
        if is_last:
            del self.requests[request_id]
        else:
            self.requests[request_id] = (count + 1, params)
        reason: FinishReason | None = "length" if is_last else None
        return StepOutput(request_id, (count,), reason, 1, 0, time.monotonic())

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def reset_after_failure(self) -> list[str]:
        failed = list(self.requests)
        self.requests.clear()
        return failed

    def stats(self) -> EngineStats:
        used = len(self.requests)
        return EngineStats(
            block_size=4, num_total_blocks=9, num_free_blocks=9 - used, num_used_blocks=used,
            num_cached_blocks=0, num_total_swap_blocks=0, num_free_swap_blocks=0,
            num_used_swap_blocks=0, num_cached_swap_blocks=0, num_running=used, num_waiting=0,
            num_swapped=0, num_finished=0, num_preemptions=0,
            prefix_cache_queries=0, prefix_cache_hits=0, blocks_allocated=0, blocks_freed=0,
            blocks_swapped_out=0, blocks_swapped_in=0,
            prompt_tokens=0, output_tokens=0,
        )  # fmt: skip


@dataclass(frozen=True)
class Built:
    engine: ScriptedEngine


@dataclass
class Watcher:
    """An observer that writes down what it is told."""

    firsts: int = 0
    nexts: int = 0
    courses: list[Course] = field(default_factory=list)
    num_refused: int = 0

    @property
    def ends(self) -> list[EndReason]:
        return [course.reason for course in self.courses]

    def first_token(self, seconds: float) -> None:
        assert seconds >= 0
        self.firsts += 1

    def next_token(self, seconds: float) -> None:
        self.nexts += 1

    def ended(self, course: Course) -> None:
        start, first, last = course.to_first_step, course.to_first_token, course.to_last_token
        if start is not None and first is not None and last is not None:
            assert 0 <= start <= first <= last <= course.to_end
        self.courses.append(course)

    def refused(self) -> None:
        self.num_refused += 1


@dataclass
class Bench:
    engine: AsyncEngine
    scripted: ScriptedEngine
    watcher: Watcher


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    watcher, scripted = Watcher(), ScriptedEngine()
    engine = AsyncEngine(watcher)
    await engine.start(lambda: Built(scripted))
    engine.accept(max_running=2, max_queue=2)
    yield Bench(engine, scripted, watcher)
    scripted.gate.set()
    assert engine.stop()


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is true; the test fails after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread
            await asyncio.sleep(0.002)


async def collect(bench: Bench, name: str, count: int) -> list[int]:
    async with await bench.engine.submit(name, [1], tokens(count)) as generation:
        return [token async for output in generation for token in output.token_ids]


async def test_every_token_arrives_once_and_in_order(bench: Bench) -> None:
    answers = await asyncio.gather(*(collect(bench, f"r{n}", 200) for n in range(4)))
    assert answers == [list(range(200))] * 4
    assert bench.watcher.ends == ["length"] * 4
    assert bench.watcher.firsts == 4
    assert bench.watcher.nexts == 4 * 199
    assert {course.num_output_tokens for course in bench.watcher.courses} == {200}


async def test_the_engine_is_touched_by_one_thread_only(bench: Bench) -> None:
    await collect(bench, "r", 3)
    assert bench.scripted.threads == {"engine"}


async def test_leaving_early_aborts_and_frees_the_blocks(bench: Bench) -> None:
    async with await bench.engine.submit("r", [1], tokens(10**6)) as generation:
        await anext(generation)
    await until(lambda: not bench.scripted.requests)
    await until(lambda: bench.engine.stats is not None and bench.engine.stats.num_used_blocks == 0)
    assert bench.watcher.ends == ["abort"]


async def test_a_request_whose_reader_leaves_is_in_no_step_but_the_one_that_runs(
    bench: Bench,
) -> None:
    scripted = bench.scripted
    async with await bench.engine.submit("r", [1], tokens(10**6)) as generation:
        await anext(generation)
        scripted.gate.clear()
        await until(lambda: scripted.num_begun == scripted.num_done + 1)
    num_begun = scripted.num_begun
    scripted.gate.set()
    await until(lambda: bench.engine.stats is not None and bench.engine.stats.num_used_blocks == 0)
    assert scripted.num_begun == num_begun


async def test_a_request_that_is_late_ends_with_an_error_and_frees_its_blocks(bench: Bench) -> None:
    now = asyncio.get_running_loop().time()
    deadline = Deadline(now + 0.02, 0.02)
    generation = await bench.engine.submit("r", [1], tokens(10**9), deadline=deadline)
    with pytest.raises(RequestTimeoutError, match=r"after 0\.02 s"):
        async for _ in generation:
            pass
    await until(lambda: not bench.scripted.requests)
    assert bench.watcher.ends == ["abort"]
    assert await collect(bench, "next", 2) == [0, 1]


async def test_time_also_ends_for_a_request_that_is_not_taken_yet(bench: Bench) -> None:
    bench.scripted.gate.clear()
    running = asyncio.create_task(collect(bench, "r", 1))
    await until(lambda: bench.scripted.num_begun == 1)
    deadline = Deadline(asyncio.get_running_loop().time(), 0.5)
    with pytest.raises(RequestTimeoutError):
        await bench.engine.submit("late", [1], tokens(1), deadline=deadline)
    bench.scripted.gate.set()
    assert await running == [0]
    await until(lambda: not bench.scripted.requests)


async def test_a_cancelled_reader_aborts_its_request(bench: Bench) -> None:
    task = asyncio.create_task(collect(bench, "r", 10**6))
    await until(lambda: bench.watcher.firsts == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not bench.scripted.requests)


async def test_a_request_that_can_never_fit_is_refused_and_the_next_is_served(bench: Bench) -> None:
    with pytest.raises(CannotEverFitError, match="whole pool has 3"):
        await bench.engine.submit("long", [1] * 11, tokens(1))
    assert await collect(bench, "r", 2) == [0, 1]
    assert bench.watcher.ends == ["length"], "a refused request is not counted as ended"


async def test_more_than_may_wait_are_refused_with_a_time_to_come_back(bench: Bench) -> None:
    bench.scripted.gate.clear()
    tasks = [asyncio.create_task(collect(bench, f"r{n}", 1)) for n in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError) as caught:
        await bench.engine.submit("one-too-many", [1], tokens(1))
    assert 1 <= caught.value.retry_after_seconds <= 60
    assert bench.watcher.num_refused == 1
    bench.scripted.gate.set()
    assert await asyncio.gather(*tasks) == [[0]] * 4
    assert await collect(bench, "later", 1) == [0]


async def test_a_slow_reader_gets_several_steps_in_one_output(bench: Bench) -> None:
    async with await bench.engine.submit("r", [1], tokens(50)) as generation:
        await until(lambda: bench.watcher.nexts == 49)
        outputs = [output async for output in generation]
    assert [token for output in outputs for token in output.token_ids] == list(range(50))
    assert len(outputs) == 1
    assert outputs[0].finish_reason == "length"


async def test_a_failing_step_fails_its_requests_and_the_loop_goes_on(bench: Bench) -> None:
    bench.scripted.gate.clear()
    task = asyncio.create_task(collect(bench, "r", 5))
    await until(lambda: "r" in bench.scripted.requests)
    bench.scripted.failures.append(RuntimeError("secret detail"))
    bench.scripted.gate.set()
    with pytest.raises(StepFailedError) as caught:
        await task
    assert "secret" not in str(caught.value)
    assert bench.watcher.ends == ["error"]
    assert await collect(bench, "next", 2) == [0, 1]


async def test_steps_that_fail_again_and_again_end_the_engine(bench: Bench) -> None:
    for number in range(3):
        bench.scripted.failures.append(RuntimeError("broken"))
        with pytest.raises(StepFailedError):
            await collect(bench, f"r{number}", 1)
    await asyncio.wait_for(bench.engine.died, 10)
    assert not bench.engine.is_accepting
    with pytest.raises(StepFailedError):
        await bench.engine.submit("after", [1], tokens(1))


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(bench: Bench) -> None:
    bench.scripted.gate.clear()
    running = asyncio.create_task(collect(bench, "r", 3))
    await until(lambda: "r" in bench.scripted.requests)
    draining = asyncio.create_task(bench.engine.drain(10))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDownError):
        await bench.engine.submit("new", [1], tokens(1))
    bench.scripted.gate.set()
    assert await draining
    assert await running == [0, 1, 2]


async def test_a_drain_that_takes_too_long_ends_the_requests(bench: Bench) -> None:
    running = asyncio.create_task(collect(bench, "r", 10**9))
    await until(lambda: bench.watcher.firsts == 1)
    assert not await bench.engine.drain(0.01)
    with pytest.raises(ShuttingDownError):
        await running


async def test_before_the_model_is_loaded_requests_are_told_so() -> None:
    engine = AsyncEngine(Watcher())
    with pytest.raises(NotReadyError):
        await engine.submit("r", [1], tokens(1))
    assert engine.stop()


async def test_what_the_build_raises_is_raised_by_start() -> None:
    def build() -> Built:
        raise OSError("no such disk")

    engine = AsyncEngine(Watcher())
    with pytest.raises(OSError, match="no such disk"):
        await engine.start(build)
    assert engine.stop()
