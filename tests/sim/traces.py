"""Recorded traces: one request a line, as CSV with a header.

`arrived_seconds,prompt_tokens,output_tokens`; also the published form of Azure's LLM inference
traces, `TIMESTAMP,ContextTokens,GeneratedTokens`, whose times are dates.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import numpy as np

from tests.sim.fleet import Request
from tests.sim.loads import Load

_NAMES = (
    ("arrived_seconds", "prompt_tokens", "output_tokens"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
)


def read_trace(path: Path, *, seed: int = 0) -> Load:
    """Read a trace; the seed draws the routes only.

    Raises:
        ValueError: a header that is neither form, or no line at all; names the file.
    """
    with path.open(newline="") as file:
        return build_trace(path.stem, csv.DictReader(file), seed=seed)


def build_trace(name: str, rows: Iterable[dict[str, str]], *, seed: int = 0) -> Load:
    """Make a load of a trace's rows, its first arrival at second 0."""
    parsed = sorted(_parse(row, name) for row in rows)
    if not parsed:
        raise ValueError(f"{name} holds no request: expected lines under {','.join(_NAMES[0])}")
    start = parsed[0][0]
    seconds: list[list[Request]] = [[] for _ in range(int(parsed[-1][0] - start) + 1)]
    draws = np.random.default_rng(seed).random((len(parsed), 2)).tolist()
    for (at, prompt, output), draw in zip(parsed, draws, strict=True):
        second = int(at - start)
        seconds[second].append(Request(second, prompt, output, tuple(draw)))
    return Load(name, seconds, peaks=1)


def _parse(row: dict[str, str], name: str) -> tuple[float, int, int]:
    for names in _NAMES:
        if all(column in row for column in names):
            at, prompt, output = (row[column] for column in names)
            return _seconds(at), max(1, int(prompt)), max(1, int(output))
    raise ValueError(f"{name} has columns {','.join(row)}: expected {','.join(_NAMES[0])}")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
