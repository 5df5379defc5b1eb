"""Reads a request's body: JSON, then the dataclass that a route wants of it.

Used by every route that takes a body. A large one is parsed in a thread, so that the event loop
goes on answering probes; and as the parser of JSON keeps the interpreter to itself until it is
through, what takes it long is refused before it begins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from qwen_engine.errors import RequestError
from qwen_engine.server.failures import MAX_BODY_BYTES

Parsed = TypeVar("Parsed")

# Text costs the parser nothing, values do: 32 MiB of one string take 0.04 s, of empty arrays 3 s
# (measured). So many are more than any prompt has tokens, and take at most 0.1 s.
MAX_VALUES = 500_000
_BEFORE_VALUES = (b",", b"[", b"{")
_SMALL_BYTES = 32 * 2**10  # parsed at once: less work than handing it to a thread and back


async def read_body(request: web.Request, parse: Callable[[object], Parsed]) -> Parsed:
    """Return what `parse` makes of the body's JSON.

    Raises:
        RequestError: it is not JSON, or has too many values; and whatever `parse` raises.
        web.HTTPRequestEntityTooLarge: it is above the limit of bytes.
    """
    data = await _read(request)
    if len(data) <= _SMALL_BYTES:
        return parse(_parse_json(data))
    return await asyncio.to_thread(lambda: parse(_parse_json(data)))


async def _read(request: web.Request) -> bytearray:
    """Return the body. The request's own `read` would keep it as long as the answer takes."""
    limit = request.app[MAX_BODY_BYTES]
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(data))
    return data


def _parse_json(data: bytearray) -> object:
    if sum(map(data.count, _BEFORE_VALUES)) > MAX_VALUES:
        raise RequestError(
            f"the request body has more than {MAX_VALUES:,} commas and opening brackets, which is "
            "more than this server takes: send several smaller requests"
        )
    try:
        return json.loads(data)
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise RequestError("the request body is not UTF-8") from error
    except ValueError as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
