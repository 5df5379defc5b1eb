"""What the server is at this moment: loading, ready, stopping or dead.

Owns the launch in the background and the facts that /health, /ready, /stats and /metrics tell.
One object per application, found under the key STATE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from aiohttp import web

from qwen_engine.async_engine import AsyncEngine
from qwen_engine.errors import NotReadyError
from qwen_engine.launch import Launched, Progress, launch
from qwen_engine.options import EngineOptions
from qwen_engine.server.engine_series import Snapshot
from qwen_engine.server.metrics import Metrics
from qwen_engine.server.service import ModelService
from qwen_engine.server.settings import ServerSettings

if TYPE_CHECKING:
    from qwen_engine.server.media import MediaReader

_SECONDS_BETWEEN_LOOKS = 0.5  # at whether anybody waits

Launch = Callable[[EngineOptions, Callable[[Progress], None]], Launched]


class ServerState:
    """Made in the event loop; `loading` is the task that loads the model."""

    def __init__(self, settings: ServerSettings, launcher: Launch = launch) -> None:
        self.settings = settings
        self.progress = Progress("starting")
        self.service: ModelService | None = None
        names = settings.engine.served_model_names
        self._model_name = names[0] if names else settings.engine.model
        self.metrics = Metrics(self._model_name, self._snapshot)
        self.engine = AsyncEngine(self.metrics)
        self._launcher = launcher
        self._opened = AsyncExitStack()
        self._finishing: asyncio.Task[None] | None = None
        self.loading = asyncio.get_running_loop().create_task(self._load())

    def require_service(self) -> ModelService:
        """Return the loaded model.

        Raises:
            NotReadyError: it is still loading.
        """
        if self.service is None:
            what = self.progress.describe()
            raise NotReadyError(f"the model is still loading ({what})", retry_after_seconds=5)
        return self.service

    async def close(self) -> bool:
        """End the engine's thread; False if it is inside a long call and goes on."""
        self.loading.cancel()
        if self._finishing is not None:
            self._finishing.cancel()
        if self.service is not None:
            self.service.close()
        await self._opened.aclose()
        return self.engine.stop()

    async def _load(self) -> None:
        launched = await self.engine.start(
            lambda: self._launcher(self.settings.engine, self._report)
        )
        media = await self._open_media(launched)
        self.service = ModelService(launched, self.engine, self.settings, media)
        self.progress = Progress("ready", self.progress.bytes_done, self.progress.bytes_total)
        self.engine.accept(
            max_running=launched.config.max_num_seqs, max_queue=self.settings.max_queue
        )
        self._finishing = asyncio.create_task(self._finish_quietly(launched))

    async def _finish_quietly(self, launched: Launched) -> None:
        """Do what the start left over whenever nobody waits; whoever needs it sooner does it."""
        is_done = False
        while not is_done:
            quiet_looks = 0
            while quiet_looks < 2:
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
                quiet_looks = quiet_looks + 1 if self.engine.is_idle else 0
            is_done = await asyncio.to_thread(launched.finish_quietly, self._is_quiet)

    def _is_quiet(self) -> bool:
        return self.engine.is_idle and self.engine.is_accepting

    async def _open_media(self, launched: Launched) -> MediaReader | None:
        """Return what reads pictures, if the engine takes any."""
        config = launched.config
        if config.encoder_cache_tokens == 0:
            return None
        from qwen_engine.server.media_opening import open_media

        return await open_media(
            config,
            self._opened,
            private_networks=self.settings.media_private_networks,
            timeout_seconds=self.settings.media_timeout_seconds,
        )

    def _report(self, progress: Progress) -> None:
        # Called in the engine's thread: one assignment of a frozen object needs no lock.
        self.progress = progress

    def _snapshot(self) -> Snapshot:
        launched = self.service.launched if self.service else None
        return Snapshot(self._model_name, self.progress, self.engine.stats, launched)


STATE = web.AppKey("state", ServerState)
