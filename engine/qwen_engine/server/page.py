"""The chat page: static files of this package, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from qwen_engine.server.failures import Handler

STATIC = Path(__file__).parent / "static"

_HEADERS = {
    # The page shows text that a model wrote: whatever that contains, it loads and runs nothing.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application) -> None:
    """Add `/` → `/chat.html` and the page's own files."""
    app.router.add_get("/", _redirect)
    for file in sorted(STATIC.iterdir()):
        if file.is_file():
            app.router.add_get(f"/{file.name}", _serve(file))


async def _redirect(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "/chat.html"})


def _serve(file: Path) -> Handler:
    async def handler(request: web.Request) -> web.FileResponse:
        return web.FileResponse(file, headers=_HEADERS)

    return handler
