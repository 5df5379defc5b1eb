"""The fields that ask for logprobs: OpenAI's two forms, and vLLM's for the prompt."""

from __future__ import annotations

from qwen_engine.server.protocol.fields import Fields

MAX_LOGPROBS = 20  # OpenAI's bound for chats, vLLM's default for all


def parse_chat_logprobs(fields: Fields) -> int | None:
    """Return how many of the likeliest tokens are wanted beside each; None for no logprobs."""
    is_wanted = fields.boolean("logprobs")
    num_tops = fields.integer("top_logprobs", low=0, high=MAX_LOGPROBS)
    if num_tops and not is_wanted:
        raise fields.error("top_logprobs", "may only be given together with logprobs: true")
    return (num_tops or 0) if is_wanted else None


def parse_completion_logprobs(fields: Fields) -> int | None:
    """Return the same of a completion, whose one field is the number."""
    return _number_or_false(fields, "logprobs")


def parse_prompt_logprobs(fields: Fields, *, stream: bool) -> int | None:
    """Return how many are wanted beside each token of the prompt; None for none."""
    wanted = _number_or_false(fields, "prompt_logprobs")
    if wanted is not None and stream:
        raise fields.error("prompt_logprobs", "cannot be had with stream: true")
    return wanted


def _number_or_false(fields: Fields, name: str) -> int | None:
    """Clients send false for "not wanted"; true would not say how many."""
    if fields.value(name) is False:
        return None
    return fields.integer(name, low=0, high=MAX_LOGPROBS)
