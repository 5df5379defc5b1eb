"""What is measured of one side, once it is loaded, and the figures that come of it.

Called in a process of its own for each kind of work. Knows a side by its protocol only. Prompts
are random ids, so nothing is shared and nothing depends on text; all of one kind have the same
length, so a side that computes batches of equal rows is at no disadvantage.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

# Ids that every vocabulary has, above the usual places of special tokens.
_LOWEST_ID, _HIGHEST_ID = 16, 271
_NUM_FIRST_TOKENS = 5  # samples of the time to first token
NUM_ROUNDS, _QUESTION_TOKENS, _ANSWER_TOKENS = 10, 64, 32

Work = Literal["speed", "few", "many", "longest", "dialogue"]
Figures = dict[str, float]


class Side(Protocol):
    """One of the two, loaded."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Answer prompts of equal length at once, greedily, with so many tokens each."""
        ...

    def reset_peak(self) -> None:
        """Forget the highest memory so far."""
        ...

    def peak_bytes(self) -> int:
        """Return the highest memory of this process since then, weights and all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is asked for, in tokens and requests."""

    num_prompts: int
    input_len: int
    output_len: int
    at_once: int
    longest_len: int
    seed: int

    def most_tokens(self, work: Work) -> int:
        """Return the tokens that must fit into the KV cache at one time."""
        request = self.input_len + self.output_len
        return {
            "speed": self.at_once * request,
            "few": self.at_once * request,
            "many": 2 * self.at_once * request,
            "longest": self.longest_len,
            "dialogue": NUM_ROUNDS * (_QUESTION_TOKENS + _ANSWER_TOKENS),
        }[work]

    def longest_request(self, work: Work) -> int:
        """Return the tokens of the longest request, its answer included."""
        if work in ("longest", "dialogue"):
            return self.most_tokens(work)
        return self.input_len + self.output_len


def measure(side: Side, work: Work, load: Load) -> Figures:
    """Do one kind of work after a warm-up and return its figures: seconds, bytes, tokens/s."""
    source = random.Random(load.seed)
    side.generate([_ids(source, 16)], 2)
    measures: dict[Work, Callable[[Side, Load, random.Random], Figures]] = {
        "speed": _measure_speed,
        "few": lambda side, load, source: _measure_held(side, load, source, load.at_once),
        "many": lambda side, load, source: _measure_held(side, load, source, 2 * load.at_once),
        "longest": _measure_longest,
        "dialogue": _measure_dialogue,
    }
    return measures[work](side, load, source)


def _measure_speed(side: Side, load: Load, source: random.Random) -> Figures:
    firsts = [
        _seconds(lambda: side.generate([_ids(source, load.input_len)], 1))
        for _ in range(_NUM_FIRST_TOKENS)
    ]
    prompts = [_ids(source, load.input_len) for _ in range(load.num_prompts)]
    batches = [prompts[i : i + load.at_once] for i in range(0, len(prompts), load.at_once)]
    seconds = _seconds(lambda: [side.generate(batch, load.output_len) for batch in batches])
    return {
        "first_token_seconds": statistics.fmean(firsts),
        "first_token_deviation_seconds": statistics.stdev(firsts),
        "tokens_per_second": load.num_prompts * load.output_len / seconds,
    }


def _measure_held(side: Side, load: Load, source: random.Random, count: int) -> Figures:
    """Return the highest memory while so many requests are held at once."""
    prompts = [_ids(source, load.input_len) for _ in range(count)]
    side.reset_peak()
    side.generate(prompts, load.output_len)
    return {"num_requests": count, "peak_bytes": side.peak_bytes()}


def _measure_longest(side: Side, load: Load, source: random.Random) -> Figures:
    answer_len = min(8, load.longest_len - 1)
    prompt = _ids(source, load.longest_len - answer_len)
    side.reset_peak()
    side.generate([prompt], answer_len)
    return {"num_tokens": load.longest_len, "peak_bytes": side.peak_bytes()}


def _measure_dialogue(side: Side, load: Load, source: random.Random) -> Figures:
    """Return how much more memory the last round took at its height than the first one."""
    history: list[int] = []
    peaks = []
    for _ in range(NUM_ROUNDS):
        history += _ids(source, _QUESTION_TOKENS)
        side.reset_peak()
        [answer] = side.generate([history], _ANSWER_TOKENS)
        peaks.append(side.peak_bytes())
        history += answer
    return {"num_tokens": len(history), "growth_bytes": peaks[-1] - peaks[0]}


def _ids(source: random.Random, length: int) -> list[int]:
    return [source.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(length)]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
