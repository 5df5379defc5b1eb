"""KV blocks and queue from vLLM's /metrics, which has no gauge of free blocks. Pure.

Called by `scrape` and by `kubectl qwen top`. The number of blocks is a label of
`vllm:cache_config_info`, their use a share, `vllm:kv_cache_usage_perc`, from 0 to 1 and of all but
the null block (vllm/v1/core/block_pool.py). How many free blocks hold a prefix is not told.
"""

from __future__ import annotations

import re

_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} [0-9.e+]+$")
_USE = re.compile(r"^vllm:kv_cache_usage_perc(?:\{(?P<labels>.*)\})? (?P<value>[0-9.e+-]+)$")
_QUEUE = re.compile(r"^vllm:num_requests_(?P<state>running|waiting)(?:\{.*\})? (?P<n>[0-9.e+]+)$")
_BLOCKS = re.compile(r'(?:^|,)num_gpu_blocks="([0-9]{1,12})"')
_ENGINE = re.compile(r'(?:^|,)engine="([^"]*)"')


def parse_vllm_blocks(text: str) -> dict[str, int] | None:
    """Read total, free and used blocks over all engines of a pod; None where it does not say."""
    totals: dict[str, int] = {}
    shares: dict[str, float] = {}
    for line in text.splitlines():
        if (info := _INFO.match(line)) and (blocks := _BLOCKS.search(info["labels"])):
            totals[_engine(info["labels"])] = max(0, int(blocks[1]) - 1)
        elif use := _USE.match(line):
            shares[_engine(use["labels"] or "")] = float(use["value"])
    if not totals or totals.keys() != shares.keys():
        return None
    if not all(0 <= share <= 1 for share in shares.values()):
        return None
    used = sum(round(shares[engine] * total) for engine, total in totals.items())
    whole = sum(totals.values())
    return {"total": whole, "free": whole - used, "used": used}


def parse_vllm_queue(text: str) -> dict[str, int]:
    """Read how many requests run and wait, over all engines of a pod."""
    found = {"running": 0, "waiting": 0}
    for match in map(_QUEUE.match, text.splitlines()):
        if match:
            found[match["state"]] += int(float(match["n"]))
    return found


def _engine(labels: str) -> str:
    match = _ENGINE.search(labels)
    return match[1] if match else ""
