"""A picture to the first token of the answer: our server, vLLM's, and transformers' `generate`.

The servers get the same request over HTTP, the picture in a data URL; transformers the same text
and file in a process of its own. Every request has a picture that nobody has seen, as all but
transformers would remember it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.bench.engines import NUM_CORES, REPOSITORY, peer_engines
from tests.bench.servers import ServerCommand, running_server
from tests.bench.vision.pictures import encoded, picture
from tests.bench.vision.turns import Row
from tests.models.qwen3_vl import build_random_qwen3_vl

QUESTION = "What is the capital of this picture? 0 1 2 3"
SIZES = {"448² JPEG": (448, 448, "JPEG"), "1920×1080 PNG": (1920, 1080, "PNG")}
SEEN = "first token: 448² JPEG, seen before"
SECONDS = 600

Send = Callable[[bytes, str], object]  # a file and its kind


@contextmanager
def first_token_rows(
    wanted: Callable[[str], bool], peers: list[str], layers: int
) -> Iterator[list[Row]]:
    """Yield the rows whose names are wanted; all engines are loaded as long."""
    names = {f"first token: {name}": size for name, size in SIZES.items()}
    chosen = {name: size for name, size in names.items() if wanted(name)}
    is_repeat_wanted = wanted(SEEN)
    if not chosen and not is_repeat_wanted:
        yield []
        return
    model = build_random_qwen3_vl(layers)
    with ExitStack() as stack:
        port = stack.enter_context(_served(_our_server(model)))
        sides: dict[str, Send] = {"ours": partial(_ask, port)}
        if "transformers" in peers and chosen:
            sides["transformers"] = stack.enter_context(_transformers(model))
        if "vllm" in peers and chosen:
            sides["vLLM"] = partial(_ask, stack.enter_context(_served(_vllm_server(model))))
        rows = [_row(name, size, sides) for name, size in chosen.items()]
        rows[1:] = [replace(row, is_warm=True) for row in rows[1:]]
        yield [*rows, *([_repeated(port)] if is_repeat_wanted else [])]


def _row(name: str, size: tuple[int, int, str], sides: dict[str, Send]) -> Row:
    width, height, kind = size
    files = {side: _files(width, height, kind) for side in sides}  # the same for all, in order

    def side(label: str) -> Callable[[], object]:
        return lambda: sides[label](next(files[label]), kind)

    return Row(name, {label: side(label) for label in sides})


def _repeated(port: int) -> Row:
    """A picture and a question asked before, beside as many tokens of text asked before."""
    file = encoded(picture(448, 448, seed=1000), "JPEG")
    count = _ask(port, file, "JPEG")["usage"]["prompt_tokens"]
    text = {**_greedy(port), "prompt": [5 + place % 300 for place in range(count)]}
    return Row(
        SEEN,
        {
            "ours": lambda: _ask(port, file, "JPEG"),
            "our text of that length": lambda: _exchange(port, "POST", "/v1/completions", text),
        },
    )


def _files(width: int, height: int, kind: str) -> Iterator[bytes]:
    seed = 0
    ready = [encoded(picture(width, height, number), kind) for number in range(8)]
    while True:
        yield ready[seed] if seed < len(ready) else encoded(picture(width, height, seed), kind)
        seed += 1


def _our_server(model: Path) -> ServerCommand:
    words = (sys.executable, "-m", "qwen_engine", "serve", str(model), "--dtype", "bfloat16",
             "--max-model-len", "4096", "--num-gpu-blocks-override", "256", "--block-size", "32",
             "--max-num-seqs", "4", "--limit-mm-per-prompt", "image=1,video=0",
             "--encoder-cache-tokens", "4096", "--host", "127.0.0.1",
             "--stats-port", "0")  # fmt: skip
    return ServerCommand("ours", words, "/ready", {})


def _vllm_server(model: Path) -> ServerCommand:
    engine = peer_engines("vllm:bfloat16", model)[0]
    words = (str(engine.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
             "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "4",
             "--limit-mm-per-prompt", '{"image": 1, "video": 0}', "--skip-mm-profiling",
             "--host", "127.0.0.1")  # fmt: skip
    settings = {**engine.environment, "VLLM_CPU_KVCACHE_SPACE": "1"}
    return ServerCommand(engine.name, words, "/health", settings)


@contextmanager
def _served(command: ServerCommand) -> Iterator[int]:
    with running_server(command) as (port, _, _):
        yield port


def _ask(port: int, data: bytes, kind: str) -> dict[str, Any]:
    """Send a picture and a question; return the answer, which is one token."""
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}},
               {"type": "text", "text": QUESTION}]  # fmt: skip
    body = {**_greedy(port), "messages": [{"role": "user", "content": content}]}
    return _exchange(port, "POST", "/v1/chat/completions", body)


@cache
def _greedy(port: int) -> dict[str, Any]:
    name = _exchange(port, "GET", "/v1/models", None)["data"][0]["id"]
    return {"model": name, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True}


def _exchange(port: int, method: str, path: str, body: object) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}: {text[:500]}")
    return dict(json.loads(text))


@contextmanager
def _transformers(model: Path) -> Iterator[Send]:
    process = subprocess.Popen(
        ["taskset", "-c", f"0-{NUM_CORES - 1}", sys.executable, "-m",
         "tests.bench.runners.hf_pictures", str(model), QUESTION],
        cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(NUM_CORES), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def send(data: bytes, kind: str) -> object:
        del kind
        stdin.write(base64.b64encode(data).decode() + "\n")
        stdin.flush()
        if not (answer := stdout.readline()):
            raise RuntimeError(f"transformers ended: {process.wait()}")
        return json.loads(answer)

    try:
        assert stdout.readline().strip() == '"ready"'
        yield send
    finally:
        stdin.close()
        process.wait(timeout=60)
