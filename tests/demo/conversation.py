"""One question to an OpenAI-compatible server, its answer printed as it comes.

Called by __main__ and the end-to-end tests. Knows the HTTP API and nothing of Kubernetes.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

QUESTION = "What is the capital of France?"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and how fast: seconds to the first piece of text and to the end."""

    text: str
    num_tokens: int
    first_seconds: float
    total_seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.num_tokens - 1) / max(self.total_seconds - self.first_seconds, 1e-9)


def ask(url: str, *, model: str, question: str = QUESTION, picture: str | None = None) -> Answer:
    """Ask, print the answer's pieces as they arrive, and return it. Raises OSError.

    picture: its URL, where the question is about one.
    """
    start, first, pieces, num_tokens = time.monotonic(), 0.0, [], 0
    for event in _events(url, _request(model, question, picture)):
        num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                first = first or time.monotonic() - start
                pieces.append(piece)
                print(piece, end="", flush=True)
    print(flush=True)
    return Answer("".join(pieces), num_tokens, first, time.monotonic() - start)


def _request(model: str, question: str, picture: str | None) -> bytes:
    content: Any = question
    if picture is not None:
        content = [
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "text", "text": question},
        ]
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 256,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def _events(url: str, body: bytes) -> Iterator[dict]:  # type: ignore[type-arg]
    """Yield the server-sent events of one streamed chat completion."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    # a proxy from the environment must not come between us and our own machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as response:
        for line in response:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)
