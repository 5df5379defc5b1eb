"""Reads fields of a spec: right type or an error that names field and value. Pure.

Called by `spec` and its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_operator.errors import InvalidSpecError

Json = Mapping[str, Any]


def parse_object(parent: Json, path: str) -> Json:
    """Return an object; {} where it is left out. Raises InvalidSpecError."""
    value = parent.get(path.rsplit(".", 1)[-1])
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSpecError(f"spec.{path}", f"must be an object, not {value!r}")
    return value


def parse_integer(parent: Json, path: str, *, least: int, default: int | None = None) -> int | None:
    """Return a whole number; the default where it is left out. Raises InvalidSpecError."""
    value = parent.get(path.rsplit(".", 1)[-1], default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidSpecError(f"spec.{path}", f"{value!r} must be a whole number from {least}")
    return value


def prune(value: Any) -> Any:
    """Return a value without what is unset in it."""
    if isinstance(value, Mapping):
        kept = {k: prune(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v not in ({}, [], "")}
    if isinstance(value, list | tuple):
        return [prune(v) for v in value]
    return value
