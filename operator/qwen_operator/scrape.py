"""Asking the engines: blocks and memory from /stats, and from /ready how far a start is; vLLM's
blocks from its /metrics.

Called by `readings`. Goes to the pod's address, not through the API server's proxy, which would
need the right to reach into every pod. What comes back is checked: it is another program's word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from qwen_operator import names
from qwen_operator.conditions import Loading
from qwen_operator.pods import PodFacts
from qwen_operator.status import Reading
from qwen_operator.vllm_metrics import parse_vllm_blocks

_TIMEOUT = aiohttp.ClientTimeout(total=2)
_LARGEST_ANSWER = 2**20  # bytes
_MOST_COMPONENTS, _LONGEST_NAME = 32, 64
_STAGES = ("starting", "downloading", "loading")
_BLOCKS = {state: f"num_{state}_gpu_blocks" for state in ("total", "free", "used", "cached")}


async def scrape_pods(
    session: aiohttp.ClientSession, pods: Sequence[PodFacts]
) -> dict[str, Reading]:
    """Ask every running pod at once; those that do not answer are left out."""
    asked = [pod for pod in pods if pod.is_running and pod.ip]
    found = await asyncio.gather(*(_scrape(session, pod) for pod in asked))
    return {pod.name: read for pod, read in zip(asked, found, strict=True) if read is not None}


def parse_stats(stats: object) -> Reading | None:
    """Read an engine's /stats; None if it is not one."""
    if not isinstance(stats, Mapping):
        return None
    found = {state: _count(stats.get(key)) for state, key in _BLOCKS.items()}
    blocks = {state: value for state, value in found.items() if value is not None}
    if len(blocks) != len(_BLOCKS):
        return None
    return Reading(blocks=blocks, measured=_measured(stats.get("measured")))


def parse_vllm(body: bytes) -> Reading | None:
    """Read vLLM's /metrics; None if it has no blocks."""
    blocks = parse_vllm_blocks(body.decode("utf-8", "replace"))
    return None if blocks is None else Reading(blocks=blocks)


def parse_ready(ready: object) -> Reading | None:
    """Read what an engine's /ready says while it is not; None if it says nothing."""
    if not isinstance(ready, Mapping) or ready.get("status") not in _STAGES:
        return None
    done, total = _count(ready.get("bytes_done")), _count(ready.get("bytes_total"))
    percent = min(100, 100 * done // total) if done is not None and total else None
    return Reading(loading=Loading(str(ready["status"]), percent))


async def _scrape(session: aiohttp.ClientSession, pod: PodFacts) -> Reading | None:
    host = f"[{pod.ip}]" if ":" in (pod.ip or "") else pod.ip
    path, parse = _question(pod)
    url = f"http://{host}:{names.ENGINE_PORT}{path}"
    try:
        async with session.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
            return parse(await _read(response))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return None


def _question(pod: PodFacts) -> tuple[str, Callable[[bytes], Reading | None]]:
    """Return the path to ask, and how to read the answer; a loading vLLM answers nothing."""
    if pod.is_vllm:
        return "/metrics", parse_vllm
    parse = parse_stats if pod.is_ready else parse_ready
    return "/stats" if pod.is_ready else "/ready", lambda body: parse(json.loads(body))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LARGEST_ANSWER:
            raise ValueError("more than an engine's /stats ever holds")
    return bytes(body)


def _measured(found: object) -> dict[str, int]:
    """Read bytes by component; nothing at all unless all of it makes sense."""
    if not isinstance(found, Mapping) or len(found) > _MOST_COMPONENTS:
        return {}
    lines = {str(name)[:_LONGEST_NAME]: _count(value) for name, value in found.items()}
    sound = {name: value for name, value in lines.items() if value is not None}
    return sound if len(sound) == len(found) else {}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
