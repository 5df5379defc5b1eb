"""`qwen-engine bench`: time to first token, decode rate and throughput, as JSON.

Owns the load and the arithmetic of its figures. Drives the engine in this process, or a server
over HTTP; prompts are random token ids, so nothing is shared between them and nothing depends on
text.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from qwen_engine.async_engine import AsyncEngine
from qwen_engine.bench_flags import BenchSettings
from qwen_engine.errors import EngineError
from qwen_engine.generation import Course
from qwen_engine.launch import Launched, launch
from qwen_engine.options import EngineOptions
from qwen_engine.planning import PlanningError
from qwen_engine.sequence import SamplingParams

# Ids that every vocabulary has, above the usual places of special tokens.
_LOWEST_ID, _HIGHEST_ID = 16, 271


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: seconds from its start to its first and to its last token."""

    first: float
    last: float
    num_tokens: int


Send = Callable[[int, list[int]], Awaitable[Sample]]  # number and prompt of a request


def run_bench(settings: BenchSettings) -> int:
    """Measure and print; return the exit code."""
    try:
        result = asyncio.run(_measure(settings))
    except (EngineError, PlanningError, OSError, http.client.HTTPException) as error:
        print(f"qwen-engine bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    if settings.engine is None:
        return await _measure_server(settings)
    return await _measure_here(settings, settings.engine)


async def _measure_here(settings: BenchSettings, options: EngineOptions) -> dict[str, Any]:
    engine = AsyncEngine(_Nobody())
    began = time.perf_counter()
    launched = await engine.start(lambda: launch(_long_enough(settings, options), lambda _: None))
    load_seconds = time.perf_counter() - began
    engine.accept(max_running=launched.config.max_num_seqs, max_queue=settings.num_prompts)
    params = SamplingParams(max_tokens=settings.output_len, temperature=0.0, ignore_eos=True)

    async def send(number: int, prompt: list[int]) -> Sample:
        start, first, count = time.perf_counter(), 0.0, 0
        async with await engine.submit(f"bench-{number}", prompt, params) as generation:
            async for output in generation:
                first = first or time.perf_counter() - start
                count += len(output.token_ids)
        return Sample(first, time.perf_counter() - start, count)

    try:
        figures = await _drive(settings, send)
    finally:
        engine.stop()
    return {**_describe(launched), "load_seconds": round(load_seconds, 3), **figures}


def _long_enough(settings: BenchSettings, options: EngineOptions) -> EngineOptions:
    """Leave the context to the planner only where it cannot come out too short."""
    needed = settings.input_len + settings.output_len
    if options.demands.max_model_len is not None:
        return options
    return replace(options, demands=replace(options.demands, max_model_len=needed))


def _describe(launched: Launched) -> dict[str, Any]:
    config, measured = launched.config, launched.engine.measured
    return {
        "model": config.served_model_names[0],
        "device": config.device,
        "dtype": config.dtype,
        "block_size": config.block_size,
        "num_blocks": config.num_gpu_blocks,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "weights_bytes": measured.weights_bytes,
        "kv_cache_bytes": measured.kv_cache_bytes,
        "process_bytes": measured.process_bytes,
    }


class _Nobody:
    """An observer that looks away."""

    def first_token(self, seconds: float) -> None: ...

    def next_token(self, seconds: float) -> None: ...

    def ended(self, course: Course) -> None: ...

    def refused(self) -> None: ...


async def _measure_server(settings: BenchSettings) -> dict[str, Any]:
    client = _Client(settings)
    with ThreadPoolExecutor(settings.max_concurrency) as threads:
        loop = asyncio.get_running_loop()

        async def send(number: int, prompt: list[int]) -> Sample:
            return await loop.run_in_executor(threads, client.send, prompt)

        figures = await _drive(settings, send)
    return {"url": settings.url, **figures}


class _Client:
    """Streams completions over HTTP, one connection per request."""

    def __init__(self, settings: BenchSettings) -> None:
        self._address = urlsplit(settings.url or "")
        self._output_len = settings.output_len
        self._headers = {"Content-Type": "application/json"}
        if settings.api_key:
            self._headers["Authorization"] = f"Bearer {settings.api_key}"

    def send(self, prompt: list[int]) -> Sample:
        body = {
            "prompt": prompt,
            "max_tokens": self._output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if self._address.scheme == "https":
            kind = http.client.HTTPSConnection
        connection = kind(self._address.netloc, timeout=600)
        start = time.perf_counter()
        try:
            path = f"{self._address.path}/v1/completions"
            connection.request("POST", path, json.dumps(body), self._headers)
            return self._read(connection.getresponse(), start)
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse, start: float) -> Sample:
        if response.status != 200:
            raise OSError(f"the server answered {response.status}: {response.read(500).decode()}")
        first = last = 0.0
        count = 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise OSError(f"the server failed: {event['error']['message']}")
            if event["choices"]:
                last = time.perf_counter() - start
                first = first or last
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
        return Sample(first, last, count)


async def _drive(settings: BenchSettings, send: Send) -> dict[str, Any]:
    """Warm up with one request, then send all of them and work out the figures."""
    source = random.Random(settings.seed)
    prompts = [
        [source.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(settings.input_len)]
        for _ in range(settings.num_prompts + 1)
    ]
    await send(0, prompts[0])
    free = asyncio.Semaphore(settings.max_concurrency)

    async def one(number: int) -> Sample:
        async with free:
            return await send(number, prompts[number])

    began = time.perf_counter()
    samples = await asyncio.gather(*(one(number) for number in range(1, len(prompts))))
    return summarise(samples, time.perf_counter() - began, settings)


def summarise(samples: Sequence[Sample], seconds: float, settings: BenchSettings) -> dict[str, Any]:
    """Work out the figures of a run that took `seconds` in all."""
    output = sum(sample.num_tokens for sample in samples)
    prompt = settings.input_len * len(samples)
    rates = [
        (sample.num_tokens - 1) / (sample.last - sample.first)
        for sample in samples
        if sample.num_tokens > 1 and sample.last > sample.first
    ]
    return {
        "num_prompts": len(samples),
        "input_len": settings.input_len,
        "output_len": settings.output_len,
        "max_concurrency": settings.max_concurrency,
        "duration_seconds": round(seconds, 3),
        "ttft_ms": _spread([1000 * sample.first for sample in samples]),
        "decode_tokens_per_second": _spread(rates),  # of each request
        "requests_per_second": round(len(samples) / seconds, 3),
        "output_tokens_per_second": round(output / seconds, 2),
        "total_tokens_per_second": round((output + prompt) / seconds, 2),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": round(statistics.fmean(ordered), 2),
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 2),
    }
