"""The pods' KV blocks in status: added up, and since when they are nearly all used or free. Pure.

Called by `status`. The time is kept so that people can be advised from a lasting state, not from a
moment: `kubectl qwen status` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
_NEARLY = 0.05  # of all blocks


def add_up(asked: Sequence[Mapping[str, int] | None], old: Json | None) -> dict[str, int] | None:
    """Add up the ready pods' blocks; while one of them is silent, as was last seen."""
    known = [blocks for blocks in asked if blocks is not None]
    if not known or len(known) < len(asked):
        return dict(old) if old else None
    told = [k for k in ("total", "free", "used", "cached") if all(k in blocks for blocks in known)]
    return {key: sum(blocks[key] for blocks in known) for key in told}


def level(blocks: Mapping[str, int], old: Json, now: str) -> dict[str, str]:
    """Return how full the pool is, and since when it is so."""
    total = blocks["total"]
    word = "Normal"
    if blocks["free"] <= _NEARLY * total:
        word = "NearlyFull"
    elif blocks["used"] <= _NEARLY * total:
        word = "NearlyEmpty"
    return {"level": word, "since": old["since"] if old.get("level") == word else now}
