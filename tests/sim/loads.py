"""The loads: who arrives when, with how long a prompt and how long an answer.

Fixed before the signal was tuned. `TUNING` may be looked at while tuning; `KEPT` are two shapes
that nothing was tuned on, and only the report runs them (`stairs`, `viral`, `batch` and `working
day` were such until a report had been looked at). All are three hours of an inhomogeneous Poisson
process whose rate is rough by itself: real traffic is burstier than Poisson.

How long the ordinary request is and how many come, `PROMPT` and `RATE`, are such that the rivals
and the oracle fare as in the study this began with: docs/autoscaling.md tells how nearly.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.sim.fleet import Request

SECONDS = 3 * 3600
PROMPT, OUTPUT = 2000.0, 900.0  # tokens of the ordinary request: 48 of them fill a pool
RATE = 0.65  # requests per second for each one that the shapes below speak of
Shape = Callable[[np.ndarray, np.random.Generator], "Course"]


@dataclass(frozen=True)
class Course:
    """What a load does, second by second: requests/s, mean lengths, and how many peaks it has."""

    rate: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    peaks: int
    long_share: float = 0.0


@dataclass(frozen=True)
class Load:
    """A load of one seed, ready to be replayed: arrivals by second."""

    name: str
    seconds: list[list[Request]]
    peaks: int

    @property
    def num_requests(self) -> int:
        return sum(map(len, self.seconds))


def build_load(name: str, seed: int) -> Load:
    """Draw one of the loads."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    course = SHAPES[name](np.arange(SECONDS, dtype=float), rng)
    counts = rng.poisson(course.rate * _roughness(rng))
    at = np.repeat(np.arange(SECONDS), counts)
    prompts = _lengths(course.prompt[at], 0.8, rng)
    is_long = rng.random(len(at)) < course.long_share
    prompts = np.where(is_long, rng.integers(8_000, 16_000, len(at)), prompts)
    outputs = _lengths(course.output[at], 0.6, rng)
    draws = rng.random((len(at), 2))
    return Load(name, _by_second(at, prompts, outputs, draws), course.peaks)


def _by_second(
    at: np.ndarray, prompts: np.ndarray, outputs: np.ndarray, draws: np.ndarray
) -> list[list[Request]]:
    seconds: list[list[Request]] = [[] for _ in range(int(at.max(initial=0)) + 1)]
    rows = zip(at.tolist(), prompts.tolist(), outputs.tolist(), draws.tolist(), strict=True)
    for second, prompt, output, draw in rows:
        seconds[second].append(Request(second, prompt, output, tuple(draw)))
    return seconds + [[] for _ in range(SECONDS - len(seconds))]


def _roughness(rng: np.random.Generator) -> np.ndarray:
    """Return a factor around 1 that wanders within a minute or so (AR(1), sigma 0.15)."""
    noise, value, kept = rng.normal(size=SECONDS // 20 + 1), 0.0, 0.7
    walk = []
    for step in noise:
        value = kept * value + math.sqrt(1 - kept**2) * step
        walk.append(value)
    smooth = np.interp(np.arange(SECONDS), np.arange(len(walk)) * 20, walk)
    return np.exp(0.15 * smooth - 0.15**2 / 2)


def _lengths(means: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Draw lognormal lengths of these means, between 8 and 16,000 tokens."""
    drawn = rng.lognormal(np.log(means) - sigma**2 / 2, sigma)
    return np.clip(drawn, 8, 16_000).astype(int)


def _course(rate: np.ndarray, peaks: int, **changed: np.ndarray | float) -> Course:
    still = np.ones(SECONDS)
    prompt, output = changed.pop("prompt", PROMPT * still), changed.pop("output", OUTPUT * still)
    return Course(RATE * np.maximum(rate, 0.0), prompt, output, peaks, **changed)  # type: ignore[arg-type]


def _ramp(t: np.ndarray, _: np.random.Generator) -> Course:
    return _course(np.interp(t, [0, 1800, 7200, 9000, 9900], [2, 2, 9, 9, 3]), 1)


def _spike(t: np.ndarray, _: np.random.Generator) -> Course:
    return _course(np.interp(t, [0, 3600, 3630, 4530, 4560], [2, 2, 10, 10, 2]), 1)


def _sawtooth(t: np.ndarray, _: np.random.Generator) -> Course:
    return _course(2 + 6 * (t % 1800) / 1800, 6)


def _day(t: np.ndarray, _: np.random.Generator) -> Course:
    morning = np.exp(-(((t - 3600) / 1500) ** 2))
    evening = np.exp(-(((t - 7800) / 1300) ** 2))
    return _course(1.5 + 5 * morning + 7 * evening, 2)


def _long_contexts(t: np.ndarray, _: np.random.Generator) -> Course:
    return _course(2 + 0.8 * np.sin(2 * np.pi * t / 3600), 3, long_share=0.2)


def _herd(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let a gateway restart: nobody for 90 s, then all of them and their retries within 15 s."""
    rate = np.full(SECONDS, 4.0)
    rate[4500:4590] = 0
    rate[4590:4605] = 4 + 1.5 * 4 * 90 / 15
    return _course(rate, 1)


def _bursty(t: np.ndarray, rng: np.random.Generator) -> Course:
    rate, now, bursts = np.full(SECONDS, 2.0), 0.0, 0
    while (now := now + 60 + rng.exponential(540)) < SECONDS - 120:
        length = 30 + rng.exponential(70)
        rate[int(now) : int(now + length)] = 7.0
        now, bursts = now + length, bursts + 1
    return _course(rate, max(bursts, 1))


def _growing_outputs(t: np.ndarray, _: np.random.Generator) -> Course:
    output = np.interp(t, [0, 1800, 6300, 9000, 9600], [500, 500, 2500, 2500, 1000])
    return _course(np.full(SECONDS, 3.0), 1, output=output)


def _growing_prompts(t: np.ndarray, _: np.random.Generator) -> Course:
    prompt = np.interp(t, [0, 1800, 6300, 9000, 9600], [900, 900, 9000, 9000, 1800])
    return _course(np.full(SECONDS, 2.5), 1, prompt=prompt)


def _stairs(t: np.ndarray, _: np.random.Generator) -> Course:
    return _course(np.select([t < 2700, t < 5400, t < 8100], [2.0, 6.0, 3.0], 8.0), 2)


def _viral(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let something be linked from a much-read page: up within two minutes, half-life 15 min."""
    since = np.maximum(t - 4000, 0)
    rate = 2 + 9 * np.minimum(since / 120, 1) * 0.5 ** (since / 900)
    return _course(
        rate, 1, prompt=PROMPT + 1600 * np.minimum(since / 120, 1) * 0.5 ** (since / 900)
    )


def _batch(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let a nightly job with long prompts and short answers join the chat for an hour."""
    job = np.interp(t, [0, 3600, 3720, 7200, 7320], [0, 0, 4, 4, 0])
    prompt, output = (3 * PROMPT + job * 5500) / (3 + job), (3 * OUTPUT + job * 300) / (3 + job)
    return _course(3 + job, 1, prompt=prompt, output=output)


def _working_day(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let people come within half an hour, go to lunch, come back, and leave."""
    at = [0, 1200, 2700, 4500, 5100, 6000, 6600, 8700, 9900]
    return _course(np.interp(t, at, [1.5, 1.5, 7.5, 7.5, 4.5, 4.5, 7, 7, 1.5]), 2)


def _failover(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let a neighbouring region fail: its users come within a minute and leave after an hour."""
    return _course(np.interp(t, [0, 3000, 3060, 6600, 7500], [2.5, 2.5, 6.5, 6.5, 2.5]), 1)


def _agents(t: np.ndarray, _: np.random.Generator) -> Course:
    """Let agents with long prompts and short answers join twice for half an hour, beside chat."""
    at = [0, 2400, 3300, 5100, 5700, 7200, 7500, 9000, 9600]
    agents = np.interp(t, at, [0, 0, 3, 3, 0, 0, 3, 3, 0])
    prompt = (2 * PROMPT + agents * 5000) / (2 + agents)
    output = (2 * OUTPUT + agents * 400) / (2 + agents)
    return _course(2 + agents, 2, prompt=prompt, output=output)


TUNING: dict[str, Shape] = {
    "ramp": _ramp,
    "spike x5": _spike,
    "sawtooth": _sawtooth,
    "day": _day,
    "long contexts": _long_contexts,
    "herd": _herd,
    "bursty": _bursty,
    "growing outputs": _growing_outputs,
    "growing prompts": _growing_prompts,
    "stairs": _stairs,
    "viral": _viral,
    "batch": _batch,
    "working day": _working_day,
}
KEPT: dict[str, Shape] = {"failover": _failover, "agents": _agents}
SHAPES: dict[str, Shape] = {**TUNING, **KEPT}
