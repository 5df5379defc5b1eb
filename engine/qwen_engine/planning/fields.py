"""How fields of a config.json are read. Called by all that read one; knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_engine.planning.errors import InvalidConfigError


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text decoder's part of a config.json: all of it, but in vision models."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise InvalidConfigError("text_config", text, "must be an object")
    return text


def positive_int(source: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """Return a positive integer field; `null` counts as absent, as it does in transformers.

    Raises:
        InvalidConfigError: absent without a default, or no positive integer.
    """
    value = source.get(field)
    value = default if value is None else value
    if value is None:
        raise InvalidConfigError(field, None, "is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise InvalidConfigError(field, value, "must be a positive integer below 2³¹")
    return value
