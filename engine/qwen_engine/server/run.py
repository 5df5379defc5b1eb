"""Runs the server from start to exit: listen, load, serve, drain.

Called by `cli` with all settings; ends the process. Owns signals and what the
outside world is told of a failure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from qwen_engine.errors import EngineError
from qwen_engine.planning import PlanningError
from qwen_engine.server.app import build_app
from qwen_engine.server.settings import ServerSettings
from qwen_engine.server.state import STATE, ServerState

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in the pod's status
CODE_FAILED = 1
_LAST_WORDS_SECONDS = 5.0  # for answers that have ended to reach their clients


def serve(settings: ServerSettings) -> NoReturn:
    """Serve until told to stop, then exit: 0 after a drain, 1 after a failure."""
    code = asyncio.run(_serve(settings))
    logging.shutdown()
    sys.stderr.flush()
    # The engine's thread may be in the middle of a load of minutes. Nothing here needs an orderly
    # end of the interpreter, which would wait for it or tear torch down under it.
    os._exit(code)


async def _serve(settings: ServerSettings) -> int:
    stop = _stop_on_signals()
    app = build_app(settings)
    # A cancelled handler leaves its `async with` blocks, and that is how a request whose client
    # has gone is aborted, streamed or not.
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_WORDS_SECONDS
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            return _fail(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
        _log_address(runner, settings)
        if settings.stats_port:
            await _listen_for_stats(runner, settings)
        return await _until_the_end(app[STATE], stop)
    finally:
        await runner.cleanup()


async def _listen_for_stats(runner: web.AppRunner, settings: ServerSettings) -> None:
    """Answer on the second port too. It is a convenience: where it is taken, the server goes on."""
    port = settings.stats_port
    try:
        await web.TCPSite(runner, settings.host, port, reuse_address=True).start()
    except OSError as error:
        why = error.strerror or error
        log.warning("Port %d is not answered too (--stats-port): %s", port, why)
    else:
        log.info("Listening on %s:%d too, for /stats", settings.host, port)


async def _until_the_end(state: ServerState, stop: asyncio.Event) -> int:
    """Wait for the first of: told to stop, failed to load, died."""
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopped, state.loading], return_when=asyncio.FIRST_COMPLETED)
    if state.loading.done() and (error := state.loading.exception()) is not None:
        return _fail(explain_load(error), error)
    if not stop.is_set():
        log.info("Ready: serving %s", ", ".join(state.require_service().names))
        await asyncio.wait([stopped, state.engine.died], return_when=asyncio.FIRST_COMPLETED)
    if state.engine.died.done():
        return _fail("the engine died: see the log above")
    await _drain(state)
    return 0


async def _drain(state: ServerState) -> None:
    seconds = state.settings.shutdown_timeout_seconds
    log.info("Stopping: running requests have %g s to finish, new ones are refused", seconds)
    if not await state.engine.drain(seconds):
        log.warning(
            "Stopping: some requests did not finish in %g s (--shutdown-timeout) and were ended: "
            "streams with finish_reason length and stop_reason shutdown, the others with 503",
            seconds,
        )
    log.info("Stopped")


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set; the second signal ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


def _log_address(runner: web.AppRunner, settings: ServerSettings) -> None:
    port = runner.addresses[0][1]
    shown = "localhost" if settings.host in ("0.0.0.0", "::", "") else settings.host
    log.info("Listening on %s:%d; chat page: http://%s:%d/", settings.host, port, shown, port)


def explain_load(error: BaseException) -> str:
    """Return one line that says why a model could not be loaded."""
    if isinstance(error, EngineError | PlanningError):
        return str(error)
    return f"the model could not be loaded: {type(error).__name__}: {error}"


def _fail(message: str, error: BaseException | None = None) -> int:
    """Say why in one line, where people and Kubernetes look for it."""
    if error is not None and not isinstance(error, EngineError | PlanningError):
        log.error("unexpected failure", exc_info=error)
    log.error("qwen-engine: %s", message)
    logging.disable()  # a launch that goes on in its thread: the last line is the one that is read
    with suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(message[:4096], encoding="utf-8")
    return CODE_FAILED
