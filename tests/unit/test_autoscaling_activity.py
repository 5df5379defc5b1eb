"""When a deployment counts as idle, from what its engines say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.autoscaling.activity import Activity, observe_activity
from qwen_operator.autoscaling.samples import Capacity, Observation, PodSample

POD = PodSample(
    pod="a", total=100, free=100, used=0, cached=0, running=0, waiting=0, swapped=0,
    allocated=10, freed=10, finished=3,
)  # fmt: skip
QUIET = Observation(
    at=0.0, pods=(POD,), silent=0, loading=0, replicas=1,
    capacity=Capacity(blocks=100, sequences=4), cold_start_seconds=30.0,
)  # fmt: skip


def after(*changes: dict[str, Any], waiting: bool = False) -> Activity:
    """Return what is known after a quiet look and these, each ten seconds later."""
    known = observe_activity(None, QUIET, waiting=False)
    for number, change in enumerate(changes, start=1):
        seen = dataclasses.replace(QUIET, at=10.0 * number, **change)
        known = observe_activity(known, seen, waiting=waiting)
    return known


def pods(**changes: Any) -> dict[str, Any]:
    return {"pods": (dataclasses.replace(POD, **changes),)}


def test_nothing_asked_is_idle_since_the_first_look() -> None:
    assert after({}, {}, {}).idle_seconds(30.0) == 30.0


@pytest.mark.parametrize(
    "change",
    [
        pods(running=1, used=5, free=95),
        pods(waiting=1),
        pods(swapped=1),
        pods(finished=4),  # it came and went between two looks
        pods(allocated=11, finished=None),
        {"pods": (POD, dataclasses.replace(POD, pod="b"))},
        {"silent": 1},
        {"loading": 1},
        {"pods": ()},
    ],
)
def test_whatever_is_asked_or_not_known_is_activity(change: dict[str, Any]) -> None:
    assert after({}, change).busy_at == 20.0


def test_a_request_that_waits_for_a_pod_is_activity() -> None:
    assert after({}, {}, waiting=True).busy_at == 20.0


def test_what_ended_long_ago_is_none() -> None:
    done = pods(finished=9)
    assert after(done, done, done).busy_at == 10.0
