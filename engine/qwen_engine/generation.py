"""One request as its reader sees it: an async iterator of outputs that can be left at any time.

Made and fed by `async_engine`, read by the server and by `bench`, all in the event loop. Knows no
text and no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from qwen_engine.llm_engine import StepOutput

EndReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a request went: tokens, and seconds from its arrival (None: it never came to that)."""

    reason: EndReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    to_first_step: float | None
    to_first_token: float | None
    to_last_token: float | None
    to_end: float


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer has to be complete, and how long that was from the request's arrival."""

    at: float  # the event loop's time
    seconds: float


class Generation:
    """The outputs of one request: an async iterator of StepOutput, to be used with `async with`.

    Leaving the block, by whatever way, aborts the request if it still runs, which frees its
    blocks. A reader that is slower than the engine gets several steps merged into one output.
    """

    def __init__(
        self,
        request_id: str,
        *,
        num_prompt_tokens: int,
        max_tokens: int,
        on_close: Callable[[Generation, EndReason], None],
    ) -> None:
        self.request_id = request_id
        self.arrived = time.monotonic()
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._num_output_tokens = 0
        self._max_tokens = max_tokens
        self._started: float | None = None
        self._first_token: float | None = None
        self._last_token: float | None = None
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None  # ends it when its time is over
        self._on_close = on_close
        self._changed = asyncio.Event()
        self._pending: StepOutput | None = None
        self._error: Exception | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close("abort")

    def close(self, reason: EndReason) -> None:
        """Abort the request if it still runs; `reason` is what the metrics will say."""
        self._is_over = True
        self._on_close(self, reason)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepOutput:
        """Wait for new tokens.

        Raises:
            StepFailedError: the step that ran this request failed.
            ShuttingDownError: the server stopped before the answer was complete.
        """
        while self._pending is None and self._error is None and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if self._pending is not None:
            output, self._pending = self._pending, None
            self._is_over = output.finish_reason is not None
            return output
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def deliver(self, output: StepOutput, now: float) -> float | None:
        """Add new tokens to what the reader has not fetched yet.

        Returns the seconds since the tokens before, None if these are the first.
        """
        gap = None if self._last_token is None else now - self._last_token
        self._first_token, self._last_token = self._first_token or now, now
        self._started = self._started or output.started
        self._num_cached_tokens = output.num_cached_tokens
        self._num_output_tokens += len(output.token_ids)
        self._add(output)
        return gap

    def course(self, reason: EndReason) -> Course:
        """Return how it went, now that it ends."""

        def since(then: float | None) -> float | None:
            return None if then is None else max(0.0, then - self.arrived)

        return Course(
            reason=reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            max_tokens=self._max_tokens,
            to_first_step=since(self._started),
            to_first_token=since(self._first_token),
            to_last_token=since(self._last_token),
            to_end=time.monotonic() - self.arrived,
        )

    def _add(self, output: StepOutput) -> None:
        if self._pending is not None:
            before = self._pending
            output = replace(
                output,
                token_ids=before.token_ids + output.token_ids,
                logprobs=before.logprobs + output.logprobs,
                prompt_logprobs=before.prompt_logprobs,
            )
        self._pending = output
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End with an error, which the reader meets after the tokens that came before it."""
        self._error = error
        if not self.accepted.done():
            self.accepted.set_exception(error)
        self._changed.set()

    @property
    def was_accepted(self) -> bool:
        done = self.accepted.done() and not self.accepted.cancelled()
        return done and self.accepted.exception() is None
