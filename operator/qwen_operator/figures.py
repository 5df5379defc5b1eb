"""What KEDA and Prometheus ask, over plain HTTP inside the cluster: one QwenDeployment's figures as
JSON, and all series at /metrics.

Called by `controller`. One address for all of them, so that KEDA needs no way to the engines, and
what it reads is the same decision that the metrics API tells an HPA. Figures are no secret: how
many replicas are wanted, and whether there is anything to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

_PATH = "/v1/namespaces/{namespace}/qwendeployments/{name}"
_SERIES_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LARGEST_BODY = 2**16  # nobody sends one


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted for a QwenDeployment now.

    Attributes:
        replicas: as an HPA with AverageValue 1 must read it (`hpa_value`).
        is_busy: something was asked of it since the look before.
        at: RFC 3339.
    """

    replicas: int
    is_busy: bool
    at: str


def figures_path(namespace: str, name: str) -> str:
    """Return the path of a QwenDeployment's figures."""
    return _PATH.format(namespace=namespace, name=name)


class FiguresServer:
    """Serves wishes; what is not known is 503, so that whoever scales holds."""

    def __init__(
        self,
        port: int,
        wish: Callable[[str, str], Wish | None],
        series: Callable[[], bytes] = bytes,
    ) -> None:
        self._port, self._wish, self._series = port, wish, series
        self._runner: web.AppRunner | None = None

    async def listen(self) -> None:
        """Listen, unless it does already. Raises OSError."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_get(_PATH, self._handle)
        app.router.add_get("/metrics", self._tell)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, self._port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner

    @property
    def port(self) -> int | None:
        """The port that is listened on, of IPv4 where both are; None before."""
        addresses = self._runner.addresses if self._runner is not None else []
        return min(addresses, key=len)[1] if addresses else None

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _tell(self, _: web.Request) -> web.Response:
        return web.Response(body=self._series(), headers={"Content-Type": _SERIES_TYPE})

    async def _handle(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = self._wish(namespace, name)
        if found is None:
            error = f"nothing is known of QwenDeployment {namespace[:64]}/{name[:64]} now"
            return web.json_response({"error": error}, status=503)
        return web.json_response(
            {"replicas": found.replicas, "busy": int(found.is_busy), "at": found.at}
        )
