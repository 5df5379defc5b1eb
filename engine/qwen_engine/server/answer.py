"""One answer as text: the engine's tokens, detokenised, the thinking apart, up to the first stop
string. Stop strings are sought in the answer only: a word in the thinking does not end it.

Used by both completion routes, streamed or not, which is why both give the same text. Knows no
HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from qwen_engine.async_engine import Generation
from qwen_engine.detokenizer import Detokenizer, StopMatcher
from qwen_engine.parsing.reasoning import ReasoningParser, Split
from qwen_engine.sequence import TokenLogprobs
from qwen_engine.server.protocol.sampling import Sampling

if TYPE_CHECKING:
    from qwen_engine.llm_engine import StepOutput


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, and the logprobs of the tokens since the piece before, if they were asked for."""

    text: str
    reasoning: str
    logprobs: Sequence[TokenLogprobs]


class Answer:
    """To be used with `async with`: leaving it early aborts the request and frees its blocks."""

    def __init__(
        self,
        generation: Generation,
        detokenizer: Detokenizer,
        sampling: Sampling,
        *,
        num_prompt_tokens: int,
        reasoning: ReasoningParser | None = None,
    ) -> None:
        self._generation = generation
        self._detokenizer = detokenizer
        self._sampling = sampling
        self._reasoning = reasoning
        self._matcher = StopMatcher(
            sampling.stop, include_match=sampling.include_stop_str_in_output
        )
        self._first: StepOutput | None = None
        self._logprobs: list[TokenLogprobs] = []  # of tokens whose text is held back
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_reasoning_tokens: int | None = None if reasoning is None else 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None  # the stop string or token that was met
        self.seconds_to_first_token: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._generation.close("abort")

    @property
    def request_id(self) -> str:
        return self._generation.request_id

    @property
    def seconds(self) -> float:
        """Time since the request came to the engine."""
        return time.monotonic() - self._generation.arrived

    def finish(self) -> dict[str, Any]:
        """Return the two fields that say why it ended; `stop_reason` is vLLM's."""
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}

    async def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        """Return those of the prompt's tokens but the first; to be called before `pieces`."""
        self._first = await anext(self._generation)
        return self._first.prompt_logprobs

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what is new until the answer is complete; only the last piece may lack text.

        Raises:
            StepFailedError, ShuttingDownError: it ended early.
        """
        while self.finish_reason is None:
            output = await self._next_output()
            if self.seconds_to_first_token is None:
                self.seconds_to_first_token = self.seconds
            new = self._take(output)
            has_text = bool(new.content or new.reasoning)
            if has_text or (self._logprobs and self.finish_reason is not None):
                logprobs, self._logprobs = self._logprobs, []
                yield Piece(new.content, new.reasoning, logprobs)

    async def whole(self) -> Piece:
        """Return the whole answer as one piece."""
        pieces = [piece async for piece in self.pieces()]
        logprobs = [entry for piece in pieces for entry in piece.logprobs]
        text = "".join(piece.text for piece in pieces)
        return Piece(text, "".join(piece.reasoning for piece in pieces), logprobs)

    async def _next_output(self) -> StepOutput:
        if self._first is None:
            return await anext(self._generation)
        output, self._first = self._first, None
        return output

    def _take(self, output: StepOutput) -> Split:
        self.num_cached_tokens = output.num_cached_tokens
        # One token at a time, so that a stop string ends the answer at the same token however
        # the engine's steps were merged.
        shown = []
        for place, token_id in enumerate(output.token_ids, start=1):
            self.num_output_tokens += 1
            self._logprobs += output.logprobs[place - 1 : place]
            is_end = place == len(output.token_ids) and output.finish_reason == "stop"
            if not (is_end and self._hides_end(token_id)):
                shown.append(self._split(self._detokenizer.feed((token_id,))))
            if self._matcher.matched is not None:
                return _join(shown)
        if output.finish_reason is not None:
            shown.append(self._end(output.finish_reason))
        return _join(shown)

    def _split(self, text: str) -> Split:
        """Take the thinking out of new text, and look for stop strings in the rest."""
        if self._reasoning is None:
            return Split(content=self._match(text))
        if self._reasoning.is_thinking:
            self.num_reasoning_tokens = (self.num_reasoning_tokens or 0) + 1
        new = self._reasoning.feed(text)
        return Split(new.reasoning, self._match(new.content))

    def _hides_end(self, token_id: int) -> bool:
        """The token that ended the answer is not part of its text, unless that was asked for."""
        if token_id in self._sampling.stop_token_ids:
            self.stop_reason = token_id
        return not self._sampling.include_stop_str_in_output

    def _match(self, text: str) -> str:
        if self.num_output_tokens <= self._sampling.min_tokens:
            return text  # too early to stop
        shown = self._matcher.feed(text)
        if self._matcher.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._matcher.matched
            self._generation.close("stop")
        return shown

    def _end(self, reason: str) -> Split:
        """Release all that was held back; it may still complete a stop string."""
        self.finish_reason = reason
        last = self._split(self._detokenizer.flush())
        rest = Split() if self._reasoning is None else self._reasoning.flush()
        shown = self._match(rest.content) + self._matcher.flush()
        return Split(last.reasoning + rest.reasoning, last.content + shown)


def _join(splits: Sequence[Split]) -> Split:
    if len(splits) == 1:
        return splits[0]
    return Split("".join(s.reasoning for s in splits), "".join(s.content for s in splits))
