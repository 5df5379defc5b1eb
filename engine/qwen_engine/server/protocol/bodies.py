"""Bodies that several routes share: errors and usage."""

from __future__ import annotations

from typing import Any


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return OpenAI's form of an error; `kind` goes into "type"."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage_body(
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    reasoning_tokens: int | None = None,
) -> dict[str, Any]:
    """Return OpenAI's account of tokens: cached ones are a part of the prompt's, those of the
    thinking (None where none is recognised) a part of the completion's.
    """
    body: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return body
