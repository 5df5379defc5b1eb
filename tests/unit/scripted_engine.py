"""An engine without a model, whose steps a test holds up or fails, and who watches its requests."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from qwen_engine.engine_stats import EngineStats
from qwen_engine.errors import CannotEverFitError
from qwen_engine.generation import Course, EndReason
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
