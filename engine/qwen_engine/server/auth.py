"""The API key: asked for on everything that costs computing or shows text.

Health, readiness, numbers and the chat page stay open, for probes, Prometheus, the operator and the
browser, which asks its user for the key.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from qwen_engine.server.failures import Failure, Handler
from qwen_engine.server.state import STATE

_GUARDED = ("/v1/", "/tokenize", "/detokenize")


@web.middleware
async def auth_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    keys = request.app[STATE].settings.api_keys
    if keys and request.path.startswith(_GUARDED) and not _is_known(request, keys):
        failure = Failure(
            401,
            "this server needs an API key: send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        return failure.response()
    return await handler(request)


def _is_known(request: web.Request, keys: tuple[str, ...]) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    sent = given.strip().encode(errors="surrogateescape")
    # Compare with all of them, in constant time, so that timing tells nothing.
    return sum(hmac.compare_digest(sent, key.encode()) for key in keys) > 0
