"""One answer on its way to a client: its pieces as they come, and the account of it.

Used by both completion routes. Knows no HTTP; the text itself is `answer_text`'s.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from qwen_engine.answer_text import AnswerText, Piece
from qwen_engine.errors import ShuttingDownError
from qwen_engine.generation import Generation
from qwen_engine.sequence import TokenLogprobs

if TYPE_CHECKING:
    from qwen_engine.llm_engine import StepOutput


SHUTDOWN = "shutdown"  # the stop_reason of a stream that the server's end cut short


class Answer:
    """To be used with `async with`: leaving it early aborts the request and frees its blocks."""

    def __init__(self, generation: Generation, text: AnswerText, *, num_prompt_tokens: int) -> None:
        self._generation = generation
        self._text = text
        self._first: StepOutput | None = None
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0
        self.seconds_to_first_token: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._generation.close("abort")

    @property
    def request_id(self) -> str:
        return self._generation.request_id

    @property
    def num_output_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of the thinking; None where none is recognised."""
        return self._text.num_reasoning_tokens

    @property
    def finish_reason(self) -> str | None:
        return self._text.finish_reason

    @property
    def seconds(self) -> float:
        """Time since the request came to the engine."""
        return time.monotonic() - self._generation.arrived

    def finish(self) -> dict[str, Any]:
        """Return the two fields that say why it ended."""
        return self._text.finish()

    async def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """Return those of the prompt's tokens but the first; to be called before `pieces`."""
        self._first = await anext(self._generation)
        return self._first.prompt_logprobs

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what is new until the answer is over; only the last piece may lack text.

        For streams: a server that stops ends the answer as a limit of tokens would, for what was
        sent cannot be taken back. Its reader finds the stop_reason "shutdown".

        Raises:
            StepFailedError, RequestTimeoutError: it ended early.
        """
        try:
            async for piece in self._pieces():
                yield piece
        except ShuttingDownError:
            if (rest := self._text.cut_off(SHUTDOWN)) is not None:
                yield rest

    async def whole(self) -> Piece:
        """Return the whole answer as one piece.

        Raises:
            StepFailedError, RequestTimeoutError: it ended early.
            ShuttingDownError: so it did, and the client can ask elsewhere, having read nothing.
        """
        pieces = [piece async for piece in self._pieces()]
        logprobs = [entry for piece in pieces for entry in piece.logprobs]
        text = "".join(piece.text for piece in pieces)
        return Piece(text, "".join(piece.reasoning for piece in pieces), logprobs)

    async def _pieces(self) -> AsyncIterator[Piece]:
        while not self._text.is_over:
            output = await self._next_output()
            if self.seconds_to_first_token is None:
                self.seconds_to_first_token = self.seconds
            self.num_cached_tokens = output.num_cached_tokens
            piece = self._text.take(output)
            if self._text.finish_reason == "stop":
                self._generation.close("stop")  # a stop string, of which the engine knows nothing
            if piece is not None:
                yield piece

    async def _next_output(self) -> StepOutput:
        if self._first is None:
            return await anext(self._generation)
        output, self._first = self._first, None
        return output
