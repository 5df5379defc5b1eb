"""Ways are timed in turns, and in processor time: who else uses the cores makes none slower."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from qwen_engine import stopwatch
from qwen_engine.kernels.library import NativeLibrary


class Machine:
    """Runs that take what they are told to, on the clock more where they wait for a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.spent = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.time_in_turns = partial(
            stopwatch.time_in_turns, num_threads=2, processor_seconds=lambda: self.spent
        )

    def way(self, name: str, *seconds: float, waits: float = 0.0) -> Callable[[], None]:
        """Return a way whose runs take these seconds, the last from then on."""

        def run() -> None:
            took = seconds[min(self.ran.count(name), len(seconds) - 1)]
            self.ran.append(name)
            self.spent += took
            self.now += took + waits

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_ways_take_turns_until_the_time_is_over_and_the_fastest_run_counts(
    machine: Machine,
) -> None:
    ways = {"a": machine.way("a", 3.0, 1.0, 2.0), "b": machine.way("b", 4.0, 2.0)}
    assert machine.time_in_turns(ways, 16.0) == {"a": 500_000, "b": 1_000_000}
    assert machine.ran == ["a", "b"] * 4


def test_each_way_runs_three_times_however_little_time_there_is(machine: Machine) -> None:
    way = machine.way("a", 9.0, 7.0, 1.0)
    assert machine.time_in_turns({"a": way}, 0.0) == {"a": 500_000}


def test_a_hopeless_way_is_not_tried_again(machine: Machine) -> None:
    ways = {"a": machine.way("a", 1.0), "b": machine.way("b", 5.0, 1.0)}
    assert machine.time_in_turns(ways, 8.0, hopeless=4) == {"a": 500_000, "b": 2_500_000}
    assert machine.ran.count("b") == 1


def test_a_way_that_waited_for_cores_is_no_slower(machine: Machine) -> None:
    ways = {"a": machine.way("a", 2.0), "b": machine.way("b", 1.0, waits=50.0)}
    assert machine.time_in_turns(ways, 150.0, hopeless=4) == {"a": 1_000_000, "b": 500_000}


def test_where_nothing_tells_of_other_threads_the_callers_own_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    monkeypatch.setattr(time, "thread_time", lambda: machine.spent)
    ways = {"a": machine.way("a", 2.0)}
    found = stopwatch.time_in_turns(ways, 0.0, num_threads=2, processor_seconds=None)
    assert found == {"a": 2_000_000}


def test_no_way_takes_less_than_a_microsecond(machine: Machine) -> None:
    assert machine.time_in_turns({"a": machine.way("a", 0.0)}, 0.0) == {"a": 1}


# The threads spin for a moment, as they do where an engine is served: of one that has not gone to
# sleep in between the system tells what it had up to its last tick.
_SHARES = """
import statistics, time
from qwen_engine import environment
environment.prepare()
import torch
from qwen_engine.kernels.library import NativeLibrary
library = NativeLibrary.find()
weight, x = torch.randn(1024, 1024), torch.randn(32, 1024)
shares = []
for _ in range(41):  # less than a tick each
    own, team = time.thread_time(), library.processor_seconds()
    torch.nn.functional.linear(x, weight)
    spent = library.processor_seconds() - team
    shares.append(spent / (time.thread_time() - own) / torch.get_num_threads())
print(statistics.median(shares))
"""


def test_the_library_counts_what_all_its_threads_have_had_up_to_now() -> None:
    if NativeLibrary.find() is None or torch.get_num_threads() == 1:
        pytest.skip("no C++ kernels for this processor, or one thread alone")
    settings = {name: value for name, value in os.environ.items() if "OMP" not in name}
    ran = subprocess.run(
        [sys.executable, "-c", _SHARES], env=settings, check=True, capture_output=True, text=True
    )
    # process_time, which leaves the others' last moments out, gives 0.5 on two cores.
    assert 0.75 < float(ran.stdout) < 1.5
