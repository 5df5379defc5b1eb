"""Clients that stream answers all the time, as users of OpenAI's package do, and how each ended."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import openai


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended: with a reason, or with an error (a cut socket is one)."""

    finish_reason: str | None
    stop_reason: str | None = None
    error: str | None = None


class Talkers:
    """So many clients in a thread of their own, each with one connection that it keeps.

    A client ends at its first error. Leaving the block lets every client end the stream that it
    reads, and waits for that. Each asks for `apart` tokens less than the one before, so that not
    all streams of a pod end at once.
    """

    def __init__(
        self, url: str, model: str, *, clients: int, max_tokens: int, apart: int = 0
    ) -> None:
        self._url, self._model = url, model
        self._clients, self._max_tokens, self._apart = clients, max_tokens, apart
        self._is_enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.ends: list[End] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.finish()

    def finish(self, seconds: float = 120.0) -> None:
        """Begin no further stream, and wait for the end of those that run."""
        self._is_enough.set()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "a stream has not ended"

    async def _run(self) -> None:
        await asyncio.gather(*(self._talk(number) for number in range(self._clients)))

    async def _talk(self, number: int) -> None:
        direct = openai.DefaultAsyncHttpxClient(trust_env=False)  # no proxy from the environment
        async with openai.AsyncOpenAI(
            base_url=f"{self._url}/v1", api_key="none", http_client=direct
        ) as client:
            while not self._is_enough.is_set():
                try:
                    self.ends.append(await self._stream(client, number))
                except Exception as error:  # also httpx's own: a stream that broke off
                    self.ends.append(End(None, error=f"{type(error).__name__}: {error}"))
                    return

    async def _stream(self, client: openai.AsyncOpenAI, number: int) -> End:
        chunks = await client.completions.create(
            model=self._model, prompt=f"client {number} asks:", stream=True,
            max_tokens=self._max_tokens - number * self._apart,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        end = End(None)
        async for chunk in chunks:
            for choice in chunk.choices:
                if choice.finish_reason is not None:
                    stop = (choice.model_extra or {}).get("stop_reason")
                    end = End(choice.finish_reason, stop)
        return end
