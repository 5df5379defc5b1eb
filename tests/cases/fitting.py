"""Leave-one-out: what the constants would be without a record, and what they then say of it.

The constants in planning/vllm_constants.py are set by hand from their causes. Fitting them on all
records but one shows whether a record was learnt by heart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import log1p

from qwen_engine.planning.vllm import price_vllm
from qwen_engine.planning.vllm_constants import CONSTANTS, VllmConstants
from qwen_engine.planning.vllm_step import VllmStart
from tests.cases.records import GIB
from tests.cases.scoring import Scored, observed_kv_gib

_FACTORS = (0.7, 0.85, 0.93, 1.07, 1.15, 1.3)
_SWEEPS = 2
_NOISE_GIB = 0.1  # two starts of one engine on one card differ by this much


@dataclass(frozen=True, slots=True)
class Sample:
    """A record that says what was left for KV."""

    id: str
    start: VllmStart
    kv_gib: float


def samples_of(rows: Iterable[Scored]) -> list[Sample]:
    """Return the records that a KV figure can be fitted on."""
    found = []
    for row in rows:
        seen, start = observed_kv_gib(row.record), row.record.start
        if row.kv_error_gib is not None and seen is not None and start is not None:
            found.append(Sample(row.record.id, start, seen))
    return found


def kv_error_gib(sample: Sample, constants: VllmConstants) -> tuple[float, float]:
    """Return the error and the budget, in GiB."""
    price = price_vllm(replace(sample.start, constants=constants))
    return price.kv_bytes / GIB - sample.kv_gib, price.budget_bytes / GIB


def fit(samples: Sequence[Sample], start: VllmConstants = CONSTANTS) -> VllmConstants:
    """Return constants with the least error, each searched between 0.5 and 2 times its own.

    Errors count by their logarithm: a large one has a cause that no constant stands for.
    """
    best, least = start, _loss(samples, start)
    for _ in range(_SWEEPS):
        for name in (field.name for field in fields(VllmConstants)):
            for factor in _FACTORS:
                value = getattr(best, name) * factor
                if not 0.5 <= value / getattr(start, name) <= 2:
                    continue
                tried = replace(best, **{name: value})
                loss = _loss(samples, tried)
                if loss < least * 0.995:
                    best, least = tried, loss
    return best


def _loss(samples: Sequence[Sample], constants: VllmConstants) -> float:
    errors = [kv_error_gib(sample, constants)[0] for sample in samples]
    return sum(log1p(abs(error) / _NOISE_GIB) for error in errors) / len(errors)


def leave_one_out(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Return each record's error and budget in GiB under constants fitted without it."""
    return {
        sample.id: kv_error_gib(sample, fit([s for s in samples if s.id != sample.id]))
        for sample in samples
    }


def summary(samples: Sequence[Sample], errors: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return how many are near, by both bounds, and the median error in GiB."""
    seen = {sample.id: abs(sample.kv_gib) for sample in samples}
    ordered = sorted(abs(error) for error, _ in errors.values())
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return {
        "kv 10%": sum(abs(e) <= 0.1 * seen[i] for i, (e, _) in errors.items()),
        "kv wide": sum(abs(e) <= max(0.1 * seen[i], 0.03 * b) for i, (e, b) in errors.items()),
        "median": median,
    }
