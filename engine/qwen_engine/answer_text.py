"""One answer as text: the engine's tokens, detokenised, the thinking apart, up to the first stop
string. Stop strings are sought in the answer only: a word in the thinking does not end it.

Used by the server's routes, streamed or not, and by `llm`, which is why all give the same text.
Knows neither HTTP nor an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qwen_engine.detokenizer import Detokenizer, StopMatcher
from qwen_engine.parsing.reasoning import ReasoningParser, Split
from qwen_engine.sequence import TokenLogprobs


class NewTokens(Protocol):
    """What a step produced for one request (`llm_engine.StepOutput`)."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]: ...

    @property
    def finish_reason(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What ends an answer's text, and whether that is shown."""

    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    min_tokens: int = 0  # before these no stop string is sought


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, and the logprobs of the tokens since the piece before, if they were asked for."""

    text: str
    reasoning: str
    logprobs: Sequence[TokenLogprobs]


class AnswerText:
    """Takes outputs until `finish_reason` is set; what it returns put together is the answer."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        rules: TextRules,
        *,
        reasoning: ReasoningParser | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._reasoning = reasoning
        self._matcher = StopMatcher(rules.stop, include_match=rules.include_stop)
        self._logprobs: list[TokenLogprobs] = []  # of tokens whose text is held back
        self.num_tokens = 0
        self.num_reasoning_tokens: int | None = None if reasoning is None else 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None  # the stop string or token that was met

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None

    def finish(self) -> dict[str, Any]:
        """Return the two fields that say why it ended; `stop_reason` is vLLM's."""
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}

    def take(self, output: NewTokens) -> Piece | None:
        """Take new tokens; return what is new to show, if anything is.

        Where a stop string is met, `finish_reason` is set though the engine would go on.
        """
        # One token at a time, so that a stop string ends the answer at the same token however
        # the engine's steps were merged.
        shown = []
        for place, token_id in enumerate(output.token_ids, start=1):
            self.num_tokens += 1
            self._logprobs += output.logprobs[place - 1 : place]
            is_end = place == len(output.token_ids) and output.finish_reason == "stop"
            if not (is_end and self._hides_end(token_id)):
                shown.append(self._split(self._detokenizer.feed((token_id,))))
            if self._matcher.matched is not None:
                return self._piece(shown)
        if output.finish_reason is not None:
            shown.append(self._end(output.finish_reason))
        return self._piece(shown)

    def cut_off(self, why: str) -> Piece | None:
        """End the answer where it is, as at a limit of tokens; return what was held back.

        `why` becomes the `stop_reason`, so that a reader can tell it from max_tokens.
        """
        shown = [self._end("length")]
        if self.finish_reason == "length":  # what was held back may complete a stop string
            self.stop_reason = why
        return self._piece(shown)

    def _piece(self, splits: Sequence[Split]) -> Piece | None:
        reasoning = "".join(split.reasoning for split in splits)
        content = "".join(split.content for split in splits)
        if not (content or reasoning or (self._logprobs and self.is_over)):
            return None
        logprobs, self._logprobs = self._logprobs, []
        return Piece(content, reasoning, logprobs)

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
        if token_id in self._rules.stop_token_ids:
            self.stop_reason = token_id
        return not self._rules.include_stop

    def _match(self, text: str) -> str:
        if self.num_tokens <= self._rules.min_tokens:
            return text  # too early to stop
        shown = self._matcher.feed(text)
        if self._matcher.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._matcher.matched
        return shown

    def _end(self, reason: str) -> Split:
        """Release all that was held back; it may still complete a stop string."""
        self.finish_reason = reason
        last = self._split(self._detokenizer.flush())
        rest = Split() if self._reasoning is None else self._reasoning.flush()
        shown = self._match(rest.content) + self._matcher.flush()
        return Split(last.reasoning + rest.reasoning, last.content + shown)
