"""How long a pod is expected to take to start, from those that did."""

from __future__ import annotations

import math

import pytest

from qwen_operator.autoscaling.cold_start import expected_cold_start, remember_cold_start


def test_the_longest_of_the_last_three_starts_is_expected() -> None:
    known: tuple[float, ...] = ()
    assert expected_cold_start(known, 120.0) == 120.0
    for seconds in (300.0, 40.0, 50.0, 45.0):
        known = remember_cold_start(known, seconds)
    assert expected_cold_start(known, 120.0) == 50.0


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e9])
def test_a_start_that_cannot_have_taken_so_long_is_not_remembered(seconds: float) -> None:
    assert remember_cold_start((30.0,), seconds) == (30.0,)
