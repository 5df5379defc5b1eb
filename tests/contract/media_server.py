"""A server that sees, in a thread of this process, and a web site that it may fetch from."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from qwen_engine.launch import Launched, Progress, launch
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands
from qwen_engine.server.app import build_app
from qwen_engine.server.settings import ServerSettings
from qwen_engine.server.state import STATE, ServerState
from tests.models.tiny_vision import build_tiny_vision
from tests.unit.pictures import encoded, noise

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
FETCH_SECONDS = 3.0
PICTURE = encoded(noise(96, 64))


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


class MediaServer:
    """The tiny 2B layout with room for 512 tokens of pictures, at most 6 of them and 2 videos."""

    def __init__(self, **changes: Any) -> None:
        self._changes = {
            "encoder_cache_tokens": 512, "limit_mm_per_prompt": {"image": 6, "video": 2},
            "mm_processor_kwargs": {}, "dtype": "float32", **changes,
        }  # fmt: skip
        self.folder = build_tiny_vision("2b")
        self.url = self.site = ""
        self.state: ServerState
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])

    def __enter__(self) -> MediaServer:
        self._thread.start()
        assert self._is_up.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def chat(self, *parts: dict[str, Any], **fields: Any) -> tuple[int, Any]:
        """Ask with these parts as the one message of the user."""
        defaults = {"messages": user(*parts), "max_tokens": 2, "temperature": 0}
        return self.post("/v1/chat/completions", {**defaults, **fields})

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            body: str = response.read().decode()
            return body

    def num_pictures_held(self) -> int:
        """Return how many the engine keeps because a request needs them."""
        service = self.state.require_service()
        entries = service.launched.engine._scheduler.encoder._entries
        return sum(entry.num_holders > 0 for entry in entries.values())

    async def _run(self) -> None:
        settings = ServerSettings(
            engine=_options(self.folder),
            media_private_networks=LOOPBACK,
            media_timeout_seconds=FETCH_SECONDS,
        )
        app = build_app(settings, launcher=self._launch)
        runners = [
            web.AppRunner(each, handler_cancellation=True, shutdown_timeout=0.5)
            for each in (app, _site())
        ]
        for runner in runners:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url, self.site = (f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners)
        self.state = app[STATE]
        await self.state.loading
        self._is_up.set()
        await self._stop.wait()
        for runner in runners:
            await runner.cleanup()

    def _launch(self, options: EngineOptions, report: Callable[[Progress], None]) -> Launched:
        launched = launch(options, report)
        config = replace(launched.config, **self._changes)
        return replace(launched, config=config, engine=LLMEngine.from_config(config))


def _options(folder: Path) -> EngineOptions:
    demands = Demands(max_model_len=1024, num_gpu_blocks_override=128, block_size=16)
    return EngineOptions(
        model=str(folder), served_model_names=("tiny",), device="cpu", demands=demands
    )


def _site() -> web.Application:
    app = web.Application()
    app.router.add_get("/{what}", _answer)
    return app


async def _answer(request: web.Request) -> web.StreamResponse:
    match request.match_info["what"]:
        case "picture.png":
            return web.Response(body=PICTURE)
        case "page":
            return web.Response(text="<!doctype html><p>Log in", content_type="text/html")
        case "away":
            raise web.HTTPFound("http://169.254.169.254/latest/meta-data")
        case "stuck":
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        case "endless":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(bytes(2**20))
    raise web.HTTPNotFound
