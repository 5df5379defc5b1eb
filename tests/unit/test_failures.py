"""What a failed request held goes with it, not when the collector comes by."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from qwen_engine.errors import RequestError
from qwen_engine.server.failures import failures_middleware
from qwen_engine.server.together import together


class Picture:
    """Stands for megabytes."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left_after(*, in_a_cycle: bool) -> list[Picture]:
    """Have a request fail whose parts hold a picture each; return those that are still there."""
    held: list[weakref.ref[Picture]] = []

    async def read(number: int) -> None:
        picture = Picture()
        held.append(weakref.ref(picture))
        await asyncio.sleep(0.001 * number)
        raise RequestError("cannot be read")

    async def handler(request: web.Request) -> web.StreamResponse:
        picture = Picture()
        held.append(weakref.ref(picture))
        try:
            await together(read(number) for number in range(3))
        except RequestError as error:
            if in_a_cycle:
                kept = error  # as a frame that has its own error
                raise RequestError("no") from kept
            raise
        return web.Response()

    async def answer() -> int:
        response = await failures_middleware(make_mocked_request("POST", "/"), handler)
        return response.status

    assert asyncio.run(answer()) == 400
    assert len(held) == 4
    return [picture for each in held if (picture := each()) is not None]


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_nothing_that_a_failed_request_held_is_left(in_a_cycle: bool) -> None:
    assert left_after(in_a_cycle=in_a_cycle) == []
