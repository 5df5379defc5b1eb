"""The engine as the server sees it: submit a request, iterate over its outputs.

Owns the requests that are alive, the bound on how many may wait, and the drain. The steps run in
`engine_thread`, so the event loop is never blocked by one. Called by `server` and `bench`. Knows
no text and no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from qwen_engine.engine_thread import Abort, Add, Built, EngineThread, Stop
from qwen_engine.errors import (
    NotReadyError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    ShuttingDownError,
    StepFailedError,
)
from qwen_engine.generation import Course, Deadline, EndReason, Generation
from qwen_engine.sequence import DEFAULT_SCHEDULING, SamplingParams, SchedulingParams

if TYPE_CHECKING:
    from qwen_engine.engine_stats import EngineStats
    from qwen_engine.llm_engine import StepOutput
    from qwen_engine.vision.prompt import MediaPrompt


class Observer(Protocol):
    """Told of every request, in the event loop (metrics)."""

    def first_token(self, seconds: float) -> None:
        """Seconds from arrival to the first token."""

    def next_token(self, seconds: float) -> None:
        """Seconds from one token to the next."""

    def ended(self, course: Course) -> None:
        """How an accepted request went, once it ends."""

    def refused(self) -> None:
        """One request was refused because the queue is full."""


class AsyncEngine:
    """All methods belong to the event loop's thread."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._thread = EngineThread(self)
        self._live: dict[str, Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._max_running = 0
        self._limit = 0
        self._mean_seconds = 1.0
        self._is_ready = False
        self._is_draining = False
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def stats(self) -> EngineStats | None:
        """The numbers after the last step or command; None until the model is loaded."""
        return self._thread.stats

    @property
    def is_accepting(self) -> bool:
        return self._is_ready and not self._is_draining and not self.died.done()

    @property
    def is_idle(self) -> bool:
        """No request is here."""
        return not self._live

    @property
    def is_draining(self) -> bool:
        """The server was told to stop: what is here may end, nothing new is taken."""
        return self._is_draining

    @property
    def max_requests(self) -> int:
        """Requests that may be here at once, running and waiting."""
        return self._limit

    async def start(self, build: Callable[[], Built]) -> Built:
        """Build the engine in its thread, which then steps it; raises what `build` raises."""
        return await self._thread.start(build)

    def accept(self, *, max_running: int, max_queue: int) -> None:
        """Take requests from now on: `max_running` and `max_queue` more that wait."""
        self._max_running = max_running
        self._limit = max_running + max_queue
        self._is_ready = True

    async def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        deadline: Deadline | None = None,
        media: MediaPrompt | None = None,
    ) -> Generation:
        """Hand a request to the engine; returns once the engine has accepted it.

        At the deadline it ends with a RequestTimeoutError, wherever it is by then.

        Raises:
            RequestError: it can never be served.
            UnavailableError: not now (still loading, queue full, shutting down).
        """
        self.require_open()
        generation = Generation(
            request_id,
            num_prompt_tokens=len(prompt_token_ids),
            max_tokens=params.max_tokens,
            on_close=self._close,
        )
        self._live[request_id] = generation
        self._idle.clear()
        if deadline is not None:
            loop = asyncio.get_running_loop()
            generation.timer = loop.call_at(deadline.at, self._expire, generation, deadline.seconds)
        self._thread.send(Add(request_id, prompt_token_ids, params, scheduling, media))
        try:
            await generation.accepted
        except BaseException:
            generation.close("abort")
            raise
        return generation

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuse new requests and wait for those here; False if some had to be cut off.

        Their readers meet a ShuttingDownError after the tokens that came before it.
        """
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            self._fail(list(self._live), _shutting_down(), "abort")
            return False
        return True

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """End the thread; False if it is inside a long call (loading, a step) and still runs."""
        self._is_draining = True
        self._thread.send(Stop())
        return self._thread.join(timeout_seconds)

    def require_open(self) -> None:
        """Raise UnavailableError unless a request would be taken now."""
        if self.died.done():
            raise _dead()
        if self._is_draining:
            raise _shutting_down()
        if not self._is_ready:
            raise NotReadyError("the model is still loading", retry_after_seconds=5)
        if len(self._live) >= self._limit:
            self._observer.refused()
            raise QueueFullError(limit=self._limit, retry_after_seconds=self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until a place should be free: the queue at the pace of the last requests."""
        turns = len(self._live) / self._max_running
        return min(60, max(1, math.ceil(turns * self._mean_seconds)))

    def _close(self, generation: Generation, reason: EndReason) -> None:
        if self._live.get(generation.request_id) is generation:
            self._thread.send(Abort(generation.request_id))
            self._forget(generation, reason)

    def _expire(self, generation: Generation, seconds: float) -> None:
        generation.fail(RequestTimeoutError(seconds=seconds))
        self._close(generation, "abort")

    def _forget(self, generation: Generation, reason: EndReason) -> None:
        del self._live[generation.request_id]
        if generation.timer is not None:
            generation.timer.cancel()
        if generation.was_accepted:
            course = generation.course(reason)
            self._mean_seconds += 0.1 * (course.to_end - self._mean_seconds)
            self._observer.ended(course)
        if not self._live:
            self._idle.set()

    def _fail(self, ids: list[str], error: Exception, reason: EndReason = "error") -> None:
        for request_id in ids:
            if (generation := self._live.get(request_id)) is not None:
                generation.fail(error)
                self._close(generation, reason)

    # EngineEvents: what the thread reports.

    def on_accepted(self, request_id: str) -> None:
        generation = self._live.get(request_id)
        if generation is not None and not generation.accepted.done():
            generation.accepted.set_result(None)

    def on_rejected(self, request_id: str, error: RequestError) -> None:
        if (generation := self._live.get(request_id)) is not None:
            generation.fail(error)

    def on_outputs(self, outputs: list[StepOutput]) -> None:
        now = time.monotonic()
        for output in outputs:
            generation = self._live.get(output.request_id)
            if generation is None:
                continue  # closed while the step ran; its abort is on the way
            gap = generation.deliver(output, now)
            if gap is None:
                self._observer.first_token(now - generation.arrived)
            else:
                self._observer.next_token(gap)
            if output.finish_reason is not None:
                self._forget(generation, output.finish_reason)

    def on_failed_step(self, request_ids: list[str]) -> None:
        error = StepFailedError("the server met an internal error while computing this answer")
        self._fail(request_ids, error)

    def on_death(self) -> None:
        self._fail(list(self._live), _dead())
        if not self.died.done():
            self.died.set_result(None)


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError(
        "the server is stopping and takes no new requests: ask again, and another replica answers",
        retry_after_seconds=1,
    )


def _dead() -> StepFailedError:
    return StepFailedError("the engine has stopped after repeated failures")
