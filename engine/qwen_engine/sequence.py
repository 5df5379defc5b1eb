"""A sequence: tokens plus the state of scheduling them.

Owns `SamplingParams` (what the user asked of the sampler), `Sequence` (what the scheduler, the
block manager and the worker know about one request) and `ScheduledBatch` (what the scheduler
hands to the worker). Sequences are made by `llm_engine`. Knows neither torch nor text nor HTTP.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, Protocol

from qwen_engine.errors import InvalidRequestError
from qwen_engine.vision.media import Media
from qwen_engine.vision.spans import Span

FinishReason = Literal["stop", "length"]


class Constraint(Protocol):
    """What an answer may go on with. Has the state of one answer: no two may share it."""

    def allowed(self) -> bytes | None:
        """Return a bit for each token, the least significant first; None if all may come."""

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to pick tokens and when to stop; vLLM's names and meanings.

    Stop strings are text and therefore not here: the server aborts the sequence on a match.

    Raises:
        InvalidRequestError: a value out of range (the server has said so before, in its words).
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = all
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    logprobs: int | None = None  # of each new token, and of so many of the likeliest beside it
    prompt_logprobs: int | None = None  # the same of the prompt's tokens, all but the first
    constraint: Constraint | None = None  # says itself when the answer may end: min_tokens is void

    def __post_init__(self) -> None:
        # Without a token to make, a request is one for the logprobs of its prompt.
        least = 1 if self.prompt_logprobs is None else 0
        _require("max_tokens", self.max_tokens, self.max_tokens >= least,
                 f"must be at least {least}")  # fmt: skip
        _require("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens,
                 "must be between 0 and max_tokens")  # fmt: skip
        _require("temperature", self.temperature, 0 <= self.temperature < math.inf,
                 "must be 0 (greedy) or above, and finite")  # fmt: skip
        _require("top_p", self.top_p, 0 < self.top_p <= 1, "must be above 0 and at most 1")
        _require("top_k", self.top_k, self.top_k >= -1, "must be at least 1, or 0 or -1 for all")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "must be between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(name, value, -2 <= value <= 2, "must be between -2 and 2")
        _require("repetition_penalty", self.repetition_penalty,
                 0 < self.repetition_penalty < math.inf, "must be above 0")  # fmt: skip
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(name, value, value is None or value >= 0, "must be at least 0")
        for token_id, bias in self.logit_bias:
            _require("logit_bias", token_id, token_id >= 0 and math.isfinite(bias),
                     "must give ids of at least 0 finite numbers")  # fmt: skip

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingParams:
    """When a request runs, and which cached prefixes it may use."""

    priority: int = 0  # lower is served first, as in vLLM
    cache_salt: str | None = None  # prefixes are shared only among requests with the same salt
    fork_of: str | None = None  # id of a request with the same prompt, whose blocks it may share


DEFAULT_SCHEDULING = SchedulingParams()


def _require(param: str, value: object, condition: bool, why: str) -> None:
    if not condition:
        raise InvalidRequestError(param, value, why)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was, by the model's own logits: before penalties, bias and temperature.

    As vLLM reports it by default (config/model.py, logprobs_mode raw_logprobs).
    """

    token_id: int
    logprob: float
    rank: int  # 1 = the likeliest
    top: tuple[tuple[int, float], ...]  # the likeliest ids with theirs, best first


class SequenceStatus(Enum):
    """Where a sequence stands; a preempted one is SWAPPED, or WAITING again."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One request's tokens and scheduling state; identity, not value, is what makes it equal.

    `num_computed_tokens` chases `len(token_ids)`: the gap is what the next steps must compute.
    There are no phases; a gap of one is what people call decoding.
    """

    request_id: str
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    max_num_tokens: int  # prompt and output together end here, whatever params say
    params: SamplingParams
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    status: SequenceStatus = SequenceStatus.WAITING
    # An array, so that the worker copies it as memory instead of walking it every step.
    block_table: array[int] = field(default_factory=lambda: array("i"))
    swap_table: array[int] = field(default_factory=lambda: array("i"))  # while it is swapped out
    block_hashes: list[bytes] = field(default_factory=list)  # of full blocks, as far as known
    num_registered_blocks: int = 0  # how many of block_table the prefix cache has been told of
    num_computed_tokens: int = 0  # K and V are in the cache for these
    num_cached_tokens: int = 0  # found in the prefix cache at first admission
    num_preemptions: int = 0
    arrival: int = 0  # its number in the order in which requests came
    num_overtakers: int = 0  # later arrivals that went before it
    step_of_admission: int = 0
    parent: Sequence | None = None  # whose blocks it shares at admission, while that one runs
    started: float = 0.0  # time.monotonic() of the first step that it was in
    finish_reason: FinishReason | None = None
    spans: tuple[Span, ...] = ()  # where pictures stand in the prompt
    media: tuple[Media, ...] = ()  # the pictures
    holds_media: bool = False  # in the encoder's cache
    # Written by the worker where params ask for it, read by the engine.
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the second token on
    last_logprobs: TokenLogprobs | None = None  # of the newest token

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Some are still to come, so its prompt must be computed and not found in the cache."""
        return (
            self.params.prompt_logprobs is not None
            and len(self.prompt_logprobs) < self.num_prompt_tokens - 1
        )

    @property
    def needs_media(self) -> bool:
        """Some of its pictures are still to be put in their places."""
        return bool(self.spans) and self.num_computed_tokens < self.spans[-1].end

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """`num_tokens` of the sequence, from position `start` on, are to be computed."""

    sequence: Sequence
    start: int
    num_tokens: int
    needs_token: bool  # the last known token is among them: sample the next one


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Copies of whole blocks, (from, to); they are made in this order, before the step computes."""

    swap_outs: tuple[tuple[int, int], ...] = ()  # device block → swap block
    swap_ins: tuple[tuple[int, int], ...] = ()  # swap block → device block
    duplicates: tuple[tuple[int, int], ...] = ()  # device block → device block


@dataclass(frozen=True, slots=True)
class EncoderOrders:
    """What the worker must do before the step: forget these embeddings, then begin with those."""

    forget: tuple[bytes, ...] = ()
    encode: tuple[Media, ...] = ()

    @property
    def is_some(self) -> bool:
        return bool(self.forget or self.encode)


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What one step computes, in order of rank; the scheduler's word to the worker."""

    entries: tuple[ScheduledSequence, ...]
    num_tokens: int
    copies: BlockCopies = BlockCopies()
    encoder: EncoderOrders = EncoderOrders()
