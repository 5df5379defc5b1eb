"""Puts the application together: state, middlewares, routes.

Called by `run` and by tests. Owns nothing that lives; the lifetime is `ServerState`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from qwen_engine.launch import launch
from qwen_engine.server import chat_route, completions_route, info_routes
from qwen_engine.server.auth import auth_middleware
from qwen_engine.server.failures import MAX_BODY_BYTES, Handler, failures_middleware, too_large
from qwen_engine.server.page import add_page
from qwen_engine.server.settings import ServerSettings
from qwen_engine.server.state import STATE, Launch, ServerState


def build_app(settings: ServerSettings, *, launcher: Launch = launch) -> web.Application:
    """Return the application; the model starts to load when the application starts."""
    app = web.Application(
        middlewares=[failures_middleware, _size_middleware, auth_middleware],
        client_max_size=settings.max_body_bytes,
    )
    app[MAX_BODY_BYTES] = settings.max_body_bytes

    async def live(app: web.Application) -> AsyncIterator[None]:
        state = app[STATE] = ServerState(settings, launcher)
        yield
        await state.close()

    app.cleanup_ctx.append(live)
    app.on_response_prepare.append(_name_server)
    app.on_response_prepare.append(_part_when_stopping)
    _add_routes(app)
    add_page(app)
    return app


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    """Say who answers, instead of the versions of Python and aiohttp."""
    response.headers["Server"] = "qwen-engine"


async def _part_when_stopping(request: web.Request, response: web.StreamResponse) -> None:
    """Have clients connect anew while the server stops: through a Service that leads elsewhere.

    A connection that is kept alive would bring their next request here again, however often they
    try, for a Service chooses once per connection.
    """
    if request.app[STATE].engine.is_draining:
        response.headers["Connection"] = "close"
        response.force_close()


def _add_routes(app: web.Application) -> None:
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_route.create_chat_completion),
            web.post("/v1/completions", completions_route.create_completion),
            web.get("/v1/models", info_routes.list_models),
            web.get("/v1/models/{name:.+}", info_routes.get_model),
            web.post("/tokenize", info_routes.tokenize),
            web.post("/detokenize", info_routes.detokenize),
            web.get("/health", info_routes.get_health),
            web.get("/ready", info_routes.get_ready),
            web.get("/stats", info_routes.get_stats),
            web.get("/metrics", info_routes.get_metrics),
            web.get("/version", info_routes.get_version),
        ]
    )


@web.middleware
async def _size_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse by the announced length, before a byte of the body is read."""
    limit = request.app[MAX_BODY_BYTES]
    if request.content_length is not None and request.content_length > limit:
        return too_large(request.app).response()
    return await handler(request)
