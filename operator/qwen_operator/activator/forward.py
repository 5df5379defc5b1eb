"""Passes one request on to a pod, and the answer back as it comes. Nothing is kept.

Called by `door`. The body stays with the client until the pod takes it (TCP's own back-pressure),
so a held request costs a connection and at most 128 KiB.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web
from yarl import URL

from qwen_operator.activator.answers import refusal
from qwen_operator.activator.targets import Endpoint

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=2.0)  # an answer takes as long as it does
# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade", "expect")
)  # fmt: skip
logger = logging.getLogger(__name__)


class NobodyThereError(Exception):
    """A pod that is called ready and cannot be connected to."""


def open_session() -> aiohttp.ClientSession:
    """Return the session that requests are passed on with: as many at once as are held."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def forward(
    request: web.Request, session: aiohttp.ClientSession, endpoint: Endpoint
) -> web.StreamResponse:
    """Pass a request on and its answer back.

    Raises:
        NobodyThereError: nobody listens there; nothing was sent yet.
    """
    url = URL(f"{endpoint.origin}{request.rel_url.raw_path_qs}", encoded=True)
    response: web.StreamResponse | None = None
    try:
        async with session.request(
            request.method,
            url,
            headers=_end_to_end(request.headers),
            data=request.content if request.can_read_body else None,
            allow_redirects=False,
            timeout=_TIMEOUT,
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
            response.force_close()  # the next connection finds the pods without us
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NobodyThereError(f"{endpoint.origin}: {error}") from error
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        logger.warning("%s %s at %s: %r", request.method, request.path, endpoint.origin, error)
        if response is not None and response.prepared:
            raise  # the answer is cut, and the client sees that it is
        message = "the engine ended the connection before it answered: send the request again"
        return refusal(message, code="engine_gone", retry_seconds=1, status=502)


def _end_to_end(headers: aiohttp.typedefs.LooseHeaders) -> list[tuple[str, str]]:
    pairs = headers.items() if hasattr(headers, "items") else headers
    return [(str(k), str(v)) for k, v in pairs if str(k).lower() not in _HOP_BY_HOP]
