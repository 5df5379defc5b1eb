"""How long ways to do the same take, on a machine that others use too.

In processor time of the threads that do it, not on the clock: of pods that start side by side each
waits for cores, and for its own threads that wait for one, many times longer than it works. And in
turns, so that what slows the cores down hits all ways alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Way = TypeVar("Way", bound=Hashable)

_LEAST_ROUNDS = 3  # the first warms up, and one of the others may be disturbed


def time_in_turns(
    ways: Mapping[Way, Callable[[], object]],
    seconds: float,
    *,
    num_threads: int,
    processor_seconds: Callable[[], float] | None,
    hopeless: float = math.inf,
) -> dict[Way, int]:
    """Return the microseconds, at least 1, that each way's fastest run takes each of the threads.

    Of three runs at least, and of more until so many seconds are over on the clock. One that took
    `hopeless` times the best so far is not tried again.

    processor_seconds: what the threads have had, all together; None: the calling thread's own time
        stands for each one's, which is fair where work is shared out evenly. The process's would
        not do: of threads other than the caller Linux counts what they have had up to the last
        tick, milliseconds ago (kernel/sched/cputime.c: thread_group_cputime).
    """
    if processor_seconds is None:
        num_threads, processor_seconds = 1, time.thread_time
    best = dict.fromkeys(ways, math.inf)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        for way, work in ways.items():
            if math.inf > best[way] > hopeless * min(best.values()):
                continue
            began = processor_seconds()
            work()
            best[way] = min(best[way], processor_seconds() - began)
        rounds += 1
    return {way: max(1, round(spent / num_threads * 1e6)) for way, spent in best.items()}
