"""Logprobs as bodies: OpenAI's form for chats, its older one for completions, vLLM's for prompts.

Used by both completion routes. Every token that the usage counts has its entry, also the one that
ended the answer and is not shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from qwen_engine.sequence import TokenLogprobs
from qwen_engine.tokenizer import Tokenizer

# JSON has no infinity; the value is vLLM's (entrypoints/openai, _create_chat_logprobs).
_LEAST_LOGPROB = -9999.0

# A token and what is known of it: nothing of a prompt's first one.
Scored = tuple[int, TokenLogprobs | None]


def scored_prompt(prompt: Sequence[int], logprobs: Iterable[TokenLogprobs]) -> list[Scored]:
    """Put together a prompt with the logprobs of all its tokens but the first."""
    return list(zip(prompt, [None, *logprobs], strict=True))


def scored(logprobs: Iterable[TokenLogprobs]) -> list[Scored]:
    return [(entry.token_id, entry) for entry in logprobs]


def chat_body(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """Return a choice's `logprobs` for the tokens of one piece or of the whole answer."""

    def name(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        return {
            "token": data.decode(errors="replace"),
            "logprob": _number(logprob),
            "bytes": list(data),
        }

    content = [
        {
            **name(entry.token_id, entry.logprob),
            "top_logprobs": [name(*rival) for rival in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def prompt_body(
    tokenizer: Tokenizer, prompt: Sequence[Scored], num_tops: int
) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs`: of each token, the likeliest ids and its own."""
    return [None if entry is None else _by_id(tokenizer, entry, num_tops) for _, entry in prompt]


def _by_id(tokenizer: Tokenizer, entry: TokenLogprobs, num_tops: int) -> dict[str, Any]:
    ranked = [(*rival, rank) for rank, rival in enumerate(entry.top[:num_tops], start=1)]
    return {
        str(token_id): {
            "logprob": _number(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(token_id).decode(errors="replace"),
        }
        for token_id, logprob, rank in [*ranked, (entry.token_id, entry.logprob, entry.rank)]
    }


class CompletionScores:
    """Makes the `logprobs` of one choice of a completion, piece by piece; counts characters."""

    def __init__(self, tokenizer: Tokenizer, *, num_tops: int, skip_special_tokens: bool) -> None:
        self.tokenizer = tokenizer
        self._num_tops = num_tops
        self._skip_special = skip_special_tokens
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def body(self, entries: Iterable[Scored]) -> dict[str, Any]:
        tokens, logprobs, tops, offsets = [], [], [], []
        for token_id, entry in entries:
            tokens.append(self._name(token_id))
            logprobs.append(None if entry is None else _number(entry.logprob))
            tops.append(None if entry is None else self._tops(entry))
            offsets.append(self._advance(token_id))
        return {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _tops(self, entry: TokenLogprobs) -> dict[str, float]:
        best = [*entry.top[: self._num_tops], (entry.token_id, entry.logprob)]
        return {self._name(token_id): _number(logprob) for token_id, logprob in best}

    def _name(self, token_id: int) -> str:
        """A token's text; of a part of a character its bytes, as OpenAI gives them."""
        data = self.tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _advance(self, token_id: int) -> int:
        """Return where the token's text begins, in characters that are complete before it."""
        start = self._offset
        data = self.tokenizer.token_bytes(token_id, skip_special_tokens=self._skip_special)
        self._offset += len(self._decoder.decode(data))
        try:
            # Before a token of whole characters, half of another becomes a character: U+FFFD.
            return self._offset - len(data.decode())
        except UnicodeDecodeError:
            return start


def _number(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
