"""How long a question waited for a core, so that busy cores are not taken for a busy server.

Linux counts for each thread how long it was ready to run and had no core: the second number of
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst), in nanoseconds.
"""

from __future__ import annotations

import os
from pathlib import Path


class CoreWaits:
    """Of one question to a server of two busy threads: its event loop, and one that steps."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._before = self._waits()

    def seconds(self) -> float:
        """Return for how long, since it was made, the answer waited for a core at most.

        The asker, the server's event loop, and the one thread that can hold Python's lock meanwhile
        wait one after the other; 0 where the system does not count. What they compute, and what
        they wait for each other, is not in it: who holds the lock for 100 ms of computing is seen
        to, however long that takes.
        """
        grown = {key: wait - self._before.get(key, 0) for key, wait in self._waits().items()}
        asker = grown.pop(os.getpid(), 0)
        loop = grown.pop(self._server_pid, 0)
        return (asker + loop + max(grown.values(), default=0)) / 1e9

    def _waits(self) -> dict[int, int]:
        tasks = [Path("/proc/self/task", str(os.getpid()))]
        tasks += Path("/proc", str(self._server_pid), "task").iterdir()
        return {int(task.name): _wait(task) for task in tasks}


def _wait(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError):  # the thread has ended, or nothing is counted
        return 0
