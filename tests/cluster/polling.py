"""Waiting for a fact, with a deadline: the only waiting that tests and set-up do.

Called from everywhere in tests/. Knows nothing of what it waits for.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    fact: Callable[[], T | None],
    *,
    what: str,
    within_seconds: float,
    every_seconds: float = 0.1,
) -> T:
    """Call `fact` until it returns something truthy, and return that.

    An exception out of `fact` ends the wait. Raises TimeoutError that names `what` and the last
    value seen.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_seconds:g} s (last seen: {value!r})")
        time.sleep(every_seconds)
