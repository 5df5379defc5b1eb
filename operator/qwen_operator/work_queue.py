"""A queue of keys to look at: each once, however often it was added; one worker at a time per key.

Called by `controller`. The same promises as client-go's workqueue
(https://pkg.go.dev/k8s.io/client-go/util/workqueue): a key added while it is being worked on comes
round again afterwards; failures come back later and later.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

K = TypeVar("K")
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0  # seconds


class WorkQueue(Generic[K]):
    """Keys in the order they were added. For one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()  # in the queue
        self._working: set[K] = set()  # with a worker
        self._again: set[K] = set()  # added while with a worker
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Have the key looked at soon."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: K, seconds: float) -> None:
        """Have the key looked at after a while, unless it is sooner for another reason."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.add, key)

    async def get(self) -> K:
        """Wait for a key; the caller owes a `done` for it."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K, *, failed: bool = False) -> float | None:
        """Give a key back. Returns the seconds until a failed one comes round, if it waits."""
        self._working.discard(key)
        failures = self._failures.pop(key, 0)
        if failed:
            self._failures[key] = failures + 1
        if key in self._again:
            self._again.discard(key)
            self.add(key)
            return None
        return self._later(key, failures) if failed else None

    def close(self) -> None:
        """Forget all that was to come later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _later(self, key: K, failures: int) -> float:
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(failures, 10))
        self.add_later(key, delay)
        return delay
