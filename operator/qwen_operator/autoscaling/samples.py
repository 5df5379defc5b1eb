"""What is seen of a deployment at one moment: its pods' blocks, queues and counters.

Made by the scraper from /stats; read by `history` and `signal`. An engine's word is checked here: a
figure that cannot be is an error, never a reason to scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_LARGEST = 2**53  # above it a JSON number need not be a whole one


class InvalidSampleError(ValueError):
    """A /stats that cannot be true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica is planned to hold: KV blocks, and sequences at a time."""

    blocks: int
    sequences: int

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.sequences < 1:
            raise InvalidSampleError(
                f"a replica is planned with {self.blocks} blocks and {self.sequences} sequences: "
                "both must be at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSample:
    """One engine's figures; free + used = total, cached blocks are free.

    Attributes:
        allocated, freed: blocks taken and given back since the engine started.
        finished: requests ended since then; None if the engine does not count them.
    """

    pod: str
    total: int
    free: int
    used: int
    cached: int
    running: int
    waiting: int
    swapped: int
    allocated: int
    freed: int
    finished: int | None = None

    @property
    def present(self) -> int:
        """Requests in the engine, in whatever state."""
        return self.running + self.waiting + self.swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A deployment at one moment.

    Attributes:
        at: seconds of a clock that never goes back.
        pods: the ready pods whose figures are fresh.
        silent: ready pods whose figures are stale, bad or missing.
        loading: pods that are on their way to be ready.
        replicas: what the deployment is scaled to now.
        cold_start_seconds: scheduled → Ready, as measured; the plan's estimate until then.
    """

    at: float
    pods: tuple[PodSample, ...]
    silent: int
    loading: int
    replicas: int
    capacity: Capacity
    cold_start_seconds: float


_FIELDS = {
    "total": "num_total_gpu_blocks",
    "free": "num_free_gpu_blocks",
    "used": "num_used_gpu_blocks",
    "cached": "num_cached_gpu_blocks",
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "swapped": "num_requests_swapped",
    "allocated": "num_blocks_allocated",
    "freed": "num_blocks_freed",
}
_FINISHED = "num_requests_finished"


def parse_sample(stats: object, *, pod: str) -> PodSample:
    """Read an engine's /stats.

    Raises:
        InvalidSampleError: it is not one, or its figures cannot be; names field and value.
    """
    if not isinstance(stats, Mapping):
        raise InvalidSampleError(f"/stats is {type(stats).__name__}, not a JSON object")
    figures = {name: _count(stats, key) for name, key in _FIELDS.items()}
    finished = _count(stats, _FINISHED) if _FINISHED in stats else None
    sample = PodSample(pod=pod, finished=finished, **figures)
    _check(sample)
    return sample


def _count(stats: Mapping[str, object], key: str) -> int:
    value = stats.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= _LARGEST:  # type: ignore[arg-type, operator]
        shown = "missing" if key not in stats else repr(value)[:40]
        raise InvalidSampleError(f"{key} is {shown}, not a count from 0 up")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _check(sample: PodSample) -> None:
    if sample.total == 0:
        raise InvalidSampleError(f"{_FIELDS['total']} is 0: an engine that serves has blocks")
    if sample.free + sample.used != sample.total:
        raise InvalidSampleError(
            f"free {sample.free} + used {sample.used} blocks are not the total {sample.total}"
        )
    if sample.cached > sample.free:
        raise InvalidSampleError(f"cached {sample.cached} blocks are more than free {sample.free}")
