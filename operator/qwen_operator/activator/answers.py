"""What the activator answers itself, in the engine's words and OpenAI's form. Pure but for aiohttp.

Called by `door`.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

_PAGES = ("/", "/chat.html")


def wakes(method: str, path: str) -> bool:
    """Say whether a request is worth a start: one to the model, or a person's with a browser.

    What asks by itself all day (scrapes, health checks, lists of models) must not keep a model up.
    """
    return method == "POST" or (method == "GET" and path in _PAGES)


def refusal(message: str, *, code: str, retry_seconds: int, status: int = 503) -> web.Response:
    """Return an error with Retry-After."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    headers = {"Retry-After": str(max(1, retry_seconds)), "Connection": "close"}
    return web.json_response({"error": error}, status=status, headers=headers)


def models(model: str) -> web.Response:
    """Return /v1/models: the model can be asked for, though nothing runs."""
    entry: dict[str, Any] = {"id": model, "object": "model", "created": 0, "owned_by": "qwen"}
    return web.json_response({"object": "list", "data": [entry]}, headers={"Connection": "close"})
