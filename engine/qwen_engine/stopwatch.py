"""How long ways to do the same take, on a machine that others use too.

In processor time of the whole process, not on the clock: of pods that start side by side each waits
for cores, and for its own threads that wait for one, many times longer than it works. And in
turns, so that what slows the cores down hits all ways alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Way = TypeVar("Way", bound=Hashable)


def time_in_turns(
    ways: Mapping[Way, Callable[[], object]], seconds: float, *, hopeless: float = math.inf
) -> dict[Way, float]:
    """Return the processor seconds, of all threads, of each way's fastest run.

    Of two runs at least, of which the first warms up, and of more until so many seconds are over on
    the clock. One that took `hopeless` times the best so far is not tried again.
    """
    best = dict.fromkeys(ways, math.inf)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < end:
        for way, work in ways.items():
            if math.inf > best[way] > hopeless * min(best.values()):
                continue
            began = time.process_time()
            work()
            best[way] = min(best[way], time.process_time() - began)
        rounds += 1
    return best
