"""Server-sent events: one JSON object each, `[DONE]` at the end.

Used by the completion routes. When the client goes away aiohttp cancels the handler, and leaving
the answer's `async with` block aborts the request; nothing here needs to watch the connection.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Self

from aiohttp import web

from qwen_engine.server.failures import explain

log = logging.getLogger(__name__)

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect the events otherwise
}


class EventStream:
    """To be used with `async with`; an error inside becomes an event, as the headers are out."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={**_HEADERS, **headers})

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConnectionError):
            return True  # the client is gone
        if error is None:
            await self._send("[DONE]")
        elif isinstance(error, Exception):
            failure = explain(error, self._request)
            log.info("%s ended early: %s", self._request.path, failure.message)
            await self.send(failure.body())
        else:
            return False  # cancelled: the client is gone, or we are stopping
        await self.response.write_eof()
        return True

    async def send(self, event: Mapping[str, Any]) -> None:
        await self._send(json.dumps(event, ensure_ascii=False, separators=(",", ":")))

    async def _send(self, data: str) -> None:
        await self.response.write(f"data: {data}\n\n".encode())
