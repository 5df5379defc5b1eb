"""What `LLM` answers: vLLM's names.

Made by `llm`. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qwen_engine.sequence import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely a token was; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


Logprobs = list[dict[int, Logprob]]  # of each token: by id, its own and those of the likeliest


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None  # only with logprobs
    logprobs: Logprobs | None
    finish_reason: str | None  # "stop" or "length"
    stop_reason: str | int | None  # the stop string or token id that was met


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None  # None if it was given as token ids
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None  # None for the first token
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool = True


def logprobs_by_id(
    entries: Iterable[TokenLogprobs], *, num_tops: int, decode: Callable[[int], str]
) -> Logprobs:
    """Return logprobs as vLLM has them."""
    return [_by_id(entry, num_tops, decode) for entry in entries]


def _by_id(entry: TokenLogprobs, num_tops: int, decode: Callable[[int], str]) -> dict[int, Logprob]:
    ranked = [(*rival, rank) for rank, rival in enumerate(entry.top[:num_tops], start=1)]
    return {
        token_id: Logprob(logprob, rank, decode(token_id))
        for token_id, logprob, rank in [*ranked, (entry.token_id, entry.logprob, entry.rank)]
    }
