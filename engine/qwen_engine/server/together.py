"""Several pieces of work at once, of which none outlives the failure of another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Do all at once and return their results; if one fails, end the others and raise its error."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del task  # a task has its error, which has this frame: neither would go by itself
        tasks.clear()
        raise
