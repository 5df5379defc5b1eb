"""What is measured: the rows, their prompts and how a figure comes of seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

LOWEST_ID, HIGHEST_ID = 1_000, 100_000  # no special tokens

Run = Callable[[list[list[int]], int], float]  # prompts, tokens of each → seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `measure` does it once.

    A short row has more turns in each round: what other guests do to memory comes and goes in
    seconds (reads of 35 to 61 GB/s within one run), and one short sample of each engine tells of
    that alone.
    """

    name: str
    unit: Literal["s", "tok/s"]  # of seconds less is better, of tok/s more
    measure: Callable[[Run, random.Random], float]
    turns: int = 1
    needs_batching: bool = False  # takes a minute where requests are not batched or shared

    def is_better(self, ratio: float) -> bool:
        return ratio < 1 if self.unit == "s" else ratio > 1


def fresh(source: random.Random, length: int) -> list[int]:
    """Return a prompt that no cache has seen."""
    return [source.randint(LOWEST_ID, HIGHEST_ID) for _ in range(length)]


def _first_token(length: int) -> Callable[[Run, random.Random], float]:
    return lambda run, source: run([fresh(source, length)], 1)


def _decode_one(run: Run, source: random.Random) -> float:
    """64 tokens after the first: what one token takes is taken off."""
    first = run([fresh(source, 32)], 1)
    return 64 / (run([fresh(source, 32)], 65) - first)


def _batch(count: int, length: int, tokens: int) -> Callable[[Run, random.Random], float]:
    def measure(run: Run, source: random.Random) -> float:
        return count * tokens / run([fresh(source, length) for _ in range(count)], tokens)

    return measure


def _shared_prefix(*, is_warm: bool) -> Callable[[Run, random.Random], float]:
    """16 requests of 512 shared and 32 own tokens, 32 tokens each; warm: the prefix is known."""

    def measure(run: Run, source: random.Random) -> float:
        prefix = fresh(source, 512)
        if is_warm:
            run([prefix + fresh(source, 32)], 1)
        return run([prefix + fresh(source, 32) for _ in range(16)], 32)

    return measure


ROWS = (
    Row("first token, 128-token prompt", "s", _first_token(128), turns=10),
    Row("first token, 1024-token prompt", "s", _first_token(1024), turns=3),
    Row("decode, one stream", "tok/s", _decode_one, turns=5),
    Row("16 × (128 → 64)", "tok/s", _batch(16, 128, 64)),
    Row("32 × (64 → 128)", "tok/s", _batch(32, 64, 128)),
    Row(
        "16 × shared 512-token prefix, cold",
        "s",
        _shared_prefix(is_warm=False),
        needs_batching=True,
    ),
    Row(
        "16 × shared 512-token prefix, warm", "s", _shared_prefix(is_warm=True), needs_batching=True
    ),
)
