"""One QwenDeployment's listener: holds requests while no pod is ready, then passes them on.

Made by `reception`. A port of its own tells whose a request is: names in the Host header are
whatever a gateway in between makes of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

import aiohttp
from aiohttp import web

from qwen_operator.activator.answers import models, refusal, wakes
from qwen_operator.activator.forward import NobodyThereError, forward
from qwen_operator.activator.targets import Endpoint, Guest

_AGAIN_SECONDS = 0.2  # after a pod that is called ready but does not listen
_DRAIN_SECONDS = 120.0  # answers that are under way when this process is asked to end
logger = logging.getLogger(__name__)


class _NoPlaceError(Exception):
    """A request that is not held, with the answer it gets instead."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Door:
    """Requests of one QwenDeployment; `waiting` of them are held now."""

    def __init__(
        self, guest: Guest, session: aiohttp.ClientSession, changed: Callable[[], None]
    ) -> None:
        """Make a closed door.

        Args:
            changed: called when the first request begins to wait, and when none does any more.
        """
        self.guest = guest
        self.waiting = 0
        self._session, self._changed = session, changed
        self._endpoints: tuple[Endpoint, ...] = ()
        self._turn = itertools.count()
        self._ready, self._is_closing = asyncio.Event(), False
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._runner is not None, "open it first"
        return int(self._runner.addresses[0][1])

    @property
    def has_endpoints(self) -> bool:
        """Whether a pod is ready."""
        return bool(self._endpoints)

    async def open(self, host: str) -> None:
        """Listen on a free port of one kind of address: of both it would be two ports."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        # a handler whose client has gone is cancelled, and its place is free
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_DRAIN_SECONDS
        )
        await runner.setup()
        await web.TCPSite(runner, host, 0).start()
        self._runner = runner

    def send_away(self) -> None:
        """Send away who waits, and from now on who would have to."""
        self._is_closing = True
        self._ready.set()

    async def close(self) -> None:
        """Send away who waits, let answers end that are under way, and stop listening."""
        self.send_away()
        if self._runner is not None:
            await self._runner.cleanup()

    def lead_to(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Take in which pods are ready; who waits is passed on."""
        if endpoints and not self._endpoints and self.waiting:
            logger.info("%s: %d requests are passed on", self._name, self.waiting)
        self._endpoints = endpoints
        if not self._is_closing:
            (self._ready.set if endpoints else self._ready.clear)()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not self._endpoints and not wakes(request.method, request.path):
            return self._unheld(request)
        deadline = asyncio.get_running_loop().time() + self.guest.hold.seconds
        try:
            while True:
                endpoint = await self._find_endpoint(deadline)
                try:
                    return await forward(request, self._session, endpoint)
                except NobodyThereError as error:
                    logger.info("%s: %s", self._name, error)
                    await asyncio.sleep(_AGAIN_SECONDS)
        except _NoPlaceError as error:
            return error.answer

    async def _find_endpoint(self, deadline: float) -> Endpoint:
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            raise self._refuse(f"no pod was ready within {self.guest.hold.seconds} s", "not_ready")
        if not self._endpoints:
            await self._wait(deadline - loop.time())
        if self._is_closing and not self._endpoints:
            raise self._refuse("the activator is being replaced", "shutting_down", seconds=5)
        return self._endpoints[next(self._turn) % len(self._endpoints)]

    async def _wait(self, seconds: float) -> None:
        most = self.guest.hold.requests
        if self.waiting >= most:
            raise self._refuse(f"{most} requests wait for a pod already", "queue_full")
        self.waiting += 1
        if self.waiting == 1:
            self._changed()
        try:
            async with asyncio.timeout(seconds):
                while not self._endpoints and not self._is_closing:
                    await self._ready.wait()
        except TimeoutError:
            limit = self.guest.hold.seconds
            raise self._refuse(f"no pod was ready within {limit} s", "not_ready") from None
        finally:
            self.waiting -= 1
            if self.waiting == 0:
                self._changed()

    def _unheld(self, request: web.Request) -> web.Response:
        if request.method == "GET" and request.path == "/v1/models":
            return models(self.guest.model)
        message = f"no pod is ready; {request.method} {request.path[:100]} starts none"
        return refusal(message, code="not_ready", retry_seconds=self.guest.start_seconds)

    def _refuse(self, why: str, code: str, *, seconds: int | None = None) -> _NoPlaceError:
        retry = self.guest.start_seconds if seconds is None else seconds
        message = f"{self.guest.model} is being started: {why}; try again in {retry} s"
        return _NoPlaceError(refusal(message, code=code, retry_seconds=retry))

    @property
    def _name(self) -> str:
        return "{namespace}/{name}".format(**self.guest.metadata)
