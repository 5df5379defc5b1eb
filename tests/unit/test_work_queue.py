"""The queue of keys that the controller works on."""

from __future__ import annotations

import asyncio

import pytest

from qwen_operator.work_queue import WorkQueue


async def test_a_key_added_while_it_is_worked_on_comes_round_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "a", "b"):
        queue.add(key)
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "b"
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)


async def test_failures_come_back_later_and_later_and_success_resets() -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = []
    for _ in range(8):
        queue.add("a")
        delays.append(queue.done(await queue.get(), failed=True))
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    queue.add("a")
    assert queue.done(await queue.get()) is None
    queue.add("a")
    assert queue.done(await queue.get(), failed=True) == 1
    queue.close()
