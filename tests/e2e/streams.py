"""Clients that stream completions, one after another, and tell whether any stream was cut."""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType
from typing import Self

import aiohttp

_PROMPT = list(range(1, 9))  # ids of the tiny model's vocabulary


class Clients:
    """So many clients at a time, in a thread of their own, inside a `with`."""

    def __init__(self, url: str, model: str, *, count: int, tokens: int, pause: float = 0) -> None:
        self._url, self._count, self._pause = f"{url}/v1/completions", count, pause
        self._body = {
            "model": model, "prompt": _PROMPT, "max_tokens": tokens, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.ended = 0
        self.refused = 0  # told to come again (429, 503): nothing was begun
        self.cut: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Let the streams end that are under way, and begin no more."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a stream does not end"

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # each finds a pod anew
        timeout = aiohttp.ClientTimeout(total=110)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await asyncio.gather(*(self._client(session) for _ in range(self._count)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            try:
                await self._stream(session)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                self.cut.append(repr(error))
            await asyncio.sleep(self._pause)

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        async with session.post(self._url, json=self._body) as answer:
            if answer.status in (429, 503):
                self.refused += 1
                await asyncio.sleep(0.2)
                return
            text = await answer.text()
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        if answer.status != 200 or events[-1:] != ["[DONE]"]:
            raise ValueError(f"{answer.status} … {text[-200:]}")
        reasons = [json.loads(event)["choices"][0]["finish_reason"] for event in events[:-1]]
        if not any(reasons):
            raise ValueError(f"no finish_reason: {text[-200:]}")
        self.ended += 1
