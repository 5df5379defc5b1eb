"""An engine's /stats as the autoscaler reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qwen_operator.autoscaling.samples import (
    Capacity,
    InvalidSampleError,
    PodSample,
    parse_sample,
)

GOOD = {
    "num_total_gpu_blocks": 100,
    "num_free_gpu_blocks": 60,
    "num_used_gpu_blocks": 40,
    "num_cached_gpu_blocks": 25,
    "num_requests_running": 3,
    "num_requests_waiting": 2,
    "num_requests_swapped": 1,
    "num_blocks_allocated": 900,
    "num_blocks_freed": 860,
}


def test_every_figure_is_read_and_what_is_more_is_ignored() -> None:
    found = parse_sample({**GOOD, "model": "m", "num_requests_finished": 7}, pod="a")
    assert found == PodSample(
        pod="a", total=100, free=60, used=40, cached=25, running=3, waiting=2, swapped=1,
        allocated=900, freed=860, finished=7,
    )  # fmt: skip
    assert found.present == 6


def test_an_engine_that_does_not_count_finished_requests_is_read_too() -> None:
    assert parse_sample(GOOD, pod="a").finished is None


@pytest.mark.parametrize("key", [*GOOD, "num_requests_finished"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", '"40"', "null", "true", "1e300", "[]"])
def test_a_figure_that_cannot_be_is_named(key: str, value: str) -> None:
    stats = json.loads(json.dumps({**GOOD, key: 0}).replace(f'"{key}": 0', f'"{key}": {value}'))
    with pytest.raises(InvalidSampleError, match=key):
        parse_sample(stats, pod="a")


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_figure_is_named(key: str) -> None:
    with pytest.raises(InvalidSampleError, match=f"{key} is missing"):
        parse_sample({k: v for k, v in GOOD.items() if k != key}, pod="a")


@pytest.mark.parametrize("stats", [None, [], "<html>", 12])
def test_what_is_no_object_is_refused(stats: Any) -> None:
    with pytest.raises(InvalidSampleError, match="not a JSON object"):
        parse_sample(stats, pod="a")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_total_gpu_blocks": 0, "num_free_gpu_blocks": 0, "num_used_gpu_blocks": 0}, "is 0"),
        ({"num_free_gpu_blocks": 61}, "are not the total 100"),
        ({"num_cached_gpu_blocks": 61}, "more than free 60"),
    ],
)
def test_figures_that_contradict_each_other_are_refused(
    changed: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidSampleError, match=words):
        parse_sample({**GOOD, **changed}, pod="a")


def test_a_replica_planned_without_blocks_is_refused() -> None:
    with pytest.raises(InvalidSampleError, match="0 blocks"):
        Capacity(blocks=0, sequences=8)
