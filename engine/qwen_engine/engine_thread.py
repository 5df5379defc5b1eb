"""The thread that builds the engine and steps it.

Owns the inbox of commands and the order of things: take all commands, run one step, report. Used by
`async_engine` only. Everything it has to say goes through `EngineEvents`, whose methods it has
the event loop call, so nothing on the loop's side needs a lock. Knows no text and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from qwen_engine.errors import RequestError
from qwen_engine.sequence import SamplingParams, SchedulingParams

if TYPE_CHECKING:
    from qwen_engine.engine_stats import EngineStats
    from qwen_engine.llm_engine import StepOutput
    from qwen_engine.vision.prompt import MediaPrompt

log = logging.getLogger(__name__)

# A step that fails once may be one bad request; this many in a row mean that the device is lost.
MAX_FAILED_STEPS_IN_A_ROW = 3


class StepEngine(Protocol):
    """What the thread needs of `LLMEngine`."""

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        scheduling: SchedulingParams,
        *,
        media: MediaPrompt | None,
    ) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def step(self) -> list[StepOutput]: ...

    def has_unfinished(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def reset_after_failure(self) -> list[str]: ...


class HoldsEngine(Protocol):
    """What a build returns: the engine, and whatever else the caller wants back with it."""

    @property
    def engine(self) -> StepEngine: ...


Built = TypeVar("Built", bound=HoldsEngine)


class EngineEvents(Protocol):
    """Called in the event loop, in the order in which the thread did the work."""

    def on_accepted(self, request_id: str) -> None: ...

    def on_rejected(self, request_id: str, error: RequestError) -> None: ...

    def on_outputs(self, outputs: list[StepOutput]) -> None: ...

    def on_failed_step(self, request_ids: list[str]) -> None: ...

    def on_death(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Add:
    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    scheduling: SchedulingParams
    media: MediaPrompt | None


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    pass


class EngineThread:
    """`start`, `send`, `join` and `stats` are for the event loop; the rest runs in the thread."""

    def __init__(self, events: EngineEvents) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Add | Abort | Stop] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._failed_steps = 0
        self.stats: EngineStats | None = None  # a frozen snapshot: reading it needs no lock

    def start(self, build: Callable[[], Built]) -> asyncio.Future[Built]:
        """Build the engine in the thread and step it from then on; the future is what was built."""
        built: asyncio.Future[Built] = self._loop.create_future()
        # A daemon: a load of minutes must not hold up the exit of a process that was told to stop.
        self._thread = threading.Thread(
            target=self._run, args=(build, built), name="engine", daemon=True
        )
        self._thread.start()
        return built

    def send(self, command: Add | Abort | Stop) -> None:
        self._inbox.put(command)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread's end; False if it is still inside a long call."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self, build: Callable[[], Built], built: asyncio.Future[Built]) -> None:
        try:
            result = build()
            self.stats = result.engine.stats()
        except Exception as error:
            self._post(_set_exception, built, error)
            return
        self._post(_set_result, built, result)
        try:
            self._step_until_stopped(result.engine)
        except Exception:
            log.exception("the engine cannot go on")
            self._post(self._events.on_death)

    def _step_until_stopped(self, engine: StepEngine) -> None:
        while True:
            self._take_commands(engine)
            self.stats = engine.stats()
            if self._stopping:
                return
            if engine.has_unfinished():
                self._step(engine)

    def _take_commands(self, engine: StepEngine) -> None:
        """Carry out all commands that are there; with nothing to compute, wait for one."""
        if not engine.has_unfinished():
            self._carry_out(engine, self._inbox.get())
        while not self._inbox.empty():
            self._carry_out(engine, self._inbox.get())

    def _carry_out(self, engine: StepEngine, command: Add | Abort | Stop) -> None:
        match command:
            case Add():
                self._add(engine, command)
            case Abort(request_id):
                engine.abort(request_id)
            case Stop():
                self._stopping = True

    def _add(self, engine: StepEngine, add: Add) -> None:
        try:
            engine.add_request(
                add.request_id,
                add.prompt_token_ids,
                add.params,
                add.scheduling,
                media=add.media,
            )
        except RequestError as error:
            self._post(self._events.on_rejected, add.request_id, error)
        else:
            self._post(self._events.on_accepted, add.request_id)

    def _step(self, engine: StepEngine) -> None:
        try:
            outputs = engine.step()
        except Exception:
            self._recover(engine)
            return
        self._failed_steps = 0
        self.stats = engine.stats()  # before the outputs: whoever sees an end sees its blocks free
        if outputs:
            self._post(self._events.on_outputs, outputs)

    def _recover(self, engine: StepEngine) -> None:
        """Give up the requests of the failed step and go on with the others."""
        self._failed_steps += 1
        log.exception("a step failed; its requests end with an error, the others go on")
        failed = engine.reset_after_failure()
        self.stats = engine.stats()
        self._post(self._events.on_failed_step, failed)
        if self._failed_steps >= MAX_FAILED_STEPS_IN_A_ROW:
            raise RuntimeError(f"{self._failed_steps} steps in a row failed")

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: the process is on its way out
            self._stopping = True


def _set_result(future: asyncio.Future[Built], result: Built) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Built], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
