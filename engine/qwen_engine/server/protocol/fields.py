"""Reads one JSON object field by field, and says what is wrong with a field in the user's terms.

Used by every parser of this package. It also keeps account: a field that nobody read was ignored,
and the response says so. `null` counts as absent everywhere, as clients send it for "not set".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qwen_engine.errors import RequestError

_TYPE_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


class Fields:
    """One JSON object of a request; `path` is where it stands in the body."""

    def __init__(self, body: object, path: str = "") -> None:
        if not isinstance(body, dict):
            what = path or "the request body"
            raise RequestError(
                f"{what} must be an object, not {describe(body)}", param=path or None
            )
        self._body: dict[str, Any] = body
        self._path = path
        self._read: set[str] = set()
        self._ignored_inside: list[str] = []

    def param(self, name: str) -> str:
        """Return the field's full name, as errors give it."""
        return f"{self._path}.{name}" if self._path else name

    def value(self, name: str) -> Any:
        """Return a field as it is, None if it is absent."""
        self._read.add(name)
        return self._body.get(name)

    def ignored(self) -> list[str]:
        """Return the fields that were sent and not read."""
        own = [self.param(name) for name in self._body if name not in self._read]
        return own + self._ignored_inside

    def leave(self, name: str) -> None:
        """Count a field that was read as ignored all the same: it is sound, but has no effect."""
        self._read.discard(name)

    def note_ignored(self, inner: Fields) -> None:
        """Count what nobody read of a field's own fields as ignored too."""
        self._ignored_inside += inner.ignored()

    def string(self, name: str) -> str | None:
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"must be a string, not {describe(value)}")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"must be a boolean, not {describe(value)}")
        return value

    def integer(self, name: str, *, low: int, high: int | None = None) -> int | None:
        """Return an integer within bounds; 16.0 passes for 16, true does not pass for 1."""
        value = self.value(name)
        if value is None:
            return None
        number = as_integer(value)
        if number is None:
            raise self.error(name, f"must be an integer, not {describe(value)}")
        if number < low or (high is not None and number > high):
            raise self.error(name, f"must be {_range(low, high)}, not {describe(value)}")
        return number

    def number(self, name: str, *, low: float, high: float | None = None) -> float | None:
        """Return a finite number within bounds."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, not {describe(value)}")
        # An integer of a thousand digits compares well but does not become a float.
        if not low <= value <= (high if high is not None else 1e300) or math.isnan(value):
            raise self.error(name, f"must be {_range(low, high)}, not {describe(value)}")
        return float(value)

    def array(self, name: str) -> list[Any] | None:
        value = self.value(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, f"must be an array, not {describe(value)}")
        return value

    def object(self, name: str) -> Mapping[str, Any] | None:
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {describe(value)}")
        return value

    def error(self, name: str, why: str) -> RequestError:
        return RequestError(f"{self.param(name)} {why}", param=self.param(name))


def as_integer(value: object) -> int | None:
    """Return a JSON number that is whole as an int, anything else as None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def describe(value: object) -> str:
    """Name a JSON value's type and, if it is short, the value itself."""
    name = _TYPE_NAMES.get(type(value), type(value).__name__)
    if value is None or isinstance(value, list | dict):
        return name
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return f"{name} of more than 30 digits"
    shown = f"{value!r}" if isinstance(value, str) else f"{value}"
    return f"{name} ({shown if len(shown) <= 60 else shown[:60] + '…'})"


def _range(low: float, high: float | None) -> str:
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
