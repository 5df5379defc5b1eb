"""Ways are timed in turns, and in processor time: who else uses the cores makes none slower."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from qwen_engine.stopwatch import time_in_turns


class Machine:
    """Runs that take what they are told to, on the clock more where they wait for a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.spent = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.spent)

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
    assert time_in_turns(ways, 13.0) == {"a": 1.0, "b": 2.0}
    assert machine.ran == ["a", "b"] * 3


def test_each_way_runs_twice_however_little_time_there_is(machine: Machine) -> None:
    assert time_in_turns({"a": machine.way("a", 9.0, 1.0)}, 0.0) == {"a": 1.0}


def test_a_hopeless_way_is_not_tried_again(machine: Machine) -> None:
    ways = {"a": machine.way("a", 1.0), "b": machine.way("b", 5.0, 1.0)}
    assert time_in_turns(ways, 8.0, hopeless=4) == {"a": 1.0, "b": 5.0}
    assert machine.ran.count("b") == 1


def test_a_way_that_waited_for_cores_is_no_slower(machine: Machine) -> None:
    ways = {"a": machine.way("a", 2.0), "b": machine.way("b", 1.0, waits=50.0)}
    assert time_in_turns(ways, 100.0, hopeless=4) == {"a": 2.0, "b": 1.0}
