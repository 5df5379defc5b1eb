"""The metrics API's listener: TLS, the front proxy's certificate, and `answers`.

Called by `registration`. New certificates mean a new listener on the same port; connections that
are open stay so.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from qwen_operator.metrics_api.answers import Figure, answer, failure
from qwen_operator.metrics_api.certificates import Certificates
from qwen_operator.metrics_api.front_proxy import FrontProxy

_LARGEST_BODY = 2**16  # nobody sends one


class MetricsServer:
    """Serves figures over TLS to the front proxy, and to nobody else."""

    def __init__(self, port: int, figures: Callable[[], Sequence[Figure]]) -> None:
        self._port = port
        self._figures = figures
        self._front_proxy: FrontProxy | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def listen(self, certificates: Certificates, front_proxy: FrontProxy) -> None:
        """Listen with these certificates, instead of those before. Raises OSError, SSLError."""
        context = _tls(certificates, front_proxy)
        if self._runner is None:
            app = web.Application(client_max_size=_LARGEST_BODY)
            app.router.add_route("*", "/{path:.*}", self._handle)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await self._runner.setup()
        if self._site is not None:
            await self._site.stop()
        self._front_proxy = front_proxy
        self._site = web.TCPSite(self._runner, None, self._port, ssl_context=context)
        await self._site.start()

    async def close(self) -> None:
        """Stop listening and end what is open."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        transport, proxy = request.transport, self._front_proxy
        shown = transport.get_extra_info("peercert") if transport is not None else None
        refusal = proxy.refusal(shown) if proxy is not None else "not ready"
        if refusal is not None:
            status, body = failure(401, refusal)
        else:
            selector = request.query.get("labelSelector", "")
            status, body = answer(request.method, request.path, selector, self._figures())
        return web.json_response(body, status=status)


def _tls(certificates: Certificates, front_proxy: FrontProxy) -> ssl.SSLContext:
    """Return the server's TLS settings; a client certificate of another authority ends it.

    A client without one is let in to be told why it may not ask.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=front_proxy.authority)
    with tempfile.TemporaryDirectory() as folder:  # ssl loads keys from files only
        chain, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        chain.write_bytes(certificates.serving)
        key.touch(mode=0o600)
        key.write_bytes(certificates.key)
        context.load_cert_chain(chain, key)
    return context
