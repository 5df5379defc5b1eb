"""Clients of a server that do everything clients do: ask, ask wrongly, stream, leave."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_WORDS = ("The", "quick", "brown", "fox", "jumps", "over", "the lazy", "dog,", "狐狸", "🦊", "1 2")
_PREFIXES = [" ".join(random.Random(seed).choices(_WORDS, k=24)) for seed in range(4)]
_OPTIONS: dict[str, list[Any]] = {
    "n": [2, 3], "cache_salt": ["a", "b"], "priority": [-1, 1, 5], "seed": [1, 2],
    "stop": [["fox"]], "temperature": [0, 0.7, 1.5], "top_p": [0.5], "top_k": [5], "min_p": [0.1],
    "presence_penalty": [1], "repetition_penalty": [1.2], "min_tokens": [1], "ignore_eos": [True],
    "logit_bias": [{"7": 5}], "response_format": [{"type": "json_object"}], "user": ["me"],
}  # fmt: skip
# Path, body; none of them is an answer's beginning, and none may be a 5xx.
_BAD: list[tuple[str, Any]] = [
    ("/v1/completions", {"prompt": "a", "max_tokens": "many"}),
    ("/v1/completions", {"prompt": [1] * 100_000}),
    ("/v1/completions", {"prompt": [10**9]}),
    ("/v1/completions", {"prompt": "a", "model": "nobody"}),
    ("/v1/completions", {"prompt": "a", "n": 10**6}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": -1}),
    ("/v1/chat/completions", b"{"),
    ("/v1/embeddings", {"input": "a"}),
    ("/nowhere", {}),
]
_MOST_FAILURES = 20  # kept with their words; all are counted


@dataclass
class Tally:
    """What came of the requests so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return self.outcomes.total()

    def fail(self, what: str) -> None:
        self.outcomes["failed"] += 1
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(what)


class Client:
    """One of many; asks one thing after another."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int, tally: Tally) -> None:
        self._session = session
        self._url = url
        self._source = random.Random(seed)
        self._tally = tally

    async def run(self, until: float) -> None:
        """Ask until the loop's clock says `until`."""
        clock = asyncio.get_running_loop().time
        while clock() < until:
            try:
                await self._ask_something()
            except (aiohttp.ClientError, TimeoutError) as error:
                self._tally.fail(f"{type(error).__name__}: {error}")

    async def _ask_something(self) -> None:
        kind = self._source.random()
        if kind < 0.1:
            await self._ask_wrongly()
        elif kind < 0.25:
            await self._leave_early()
        else:
            await self._ask()

    async def _ask_wrongly(self) -> None:
        path, body = self._source.choice(_BAD)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url + path, data=data, headers=headers) as response:
            text = await response.text()
        if 400 <= response.status < 500:
            self._tally.outcomes["refused"] += 1
        else:
            self._tally.fail(f"{response.status} to {path} {str(body)[:100]}: {text[:200]}")

    async def _leave_early(self) -> None:
        """Hang up after a while: before an answer, in the middle of one, or just after it."""
        try:
            async with asyncio.timeout(self._source.choice([0.001, 0.02, 0.1, 0.3])):
                await self._ask()
        except TimeoutError:
            self._tally.outcomes["left"] += 1

    async def _ask(self) -> None:
        path, body = self._make_request()
        async with self._session.post(self._url + path, json=body) as response:
            text = await response.text()
        if response.status == 429 and "Retry-After" in response.headers:
            self._tally.outcomes["sent away"] += 1
            await asyncio.sleep(0.2)
        elif response.status == 200 and _is_whole(text, is_streamed=body["stream"]):
            self._tally.outcomes["answered"] += 1
        else:
            self._tally.fail(f"{response.status} to {path} {body}: {text[-200:]}")

    def _make_request(self) -> tuple[str, dict[str, Any]]:
        source = self._source
        prefix = source.choice([*_PREFIXES, "", ""])
        text = f"{prefix} {' '.join(source.choices(_WORDS, k=source.randint(1, 20)))}"
        body: dict[str, Any] = {
            "max_tokens": source.choice([1, 8, 30, 60]), "stream": source.random() < 0.5,
        }  # fmt: skip
        for name in source.sample(sorted(_OPTIONS), source.randint(0, 4)):
            body[name] = source.choice(_OPTIONS[name])
        if source.random() < 0.5:
            return "/v1/completions", {"prompt": text, **body}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body}


def _is_whole(text: str, *, is_streamed: bool) -> bool:
    if is_streamed:
        return text.endswith("data: [DONE]\n\n") and 'data: {"error"' not in text
    return all(choice["finish_reason"] for choice in json.loads(text)["choices"])
