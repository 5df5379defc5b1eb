"""What an engine says of itself is checked before it is believed."""

from __future__ import annotations

import pytest

from qwen_operator.conditions import Loading
from qwen_operator.scrape import parse_ready, parse_stats
from qwen_operator.status import Reading

SOUND = {
    "num_total_gpu_blocks": 10,
    "num_free_gpu_blocks": 8,
    "num_used_gpu_blocks": 2,
    "num_cached_gpu_blocks": 1,
}


def test_blocks_are_read_from_stats() -> None:
    assert parse_stats({**SOUND, "more": [1]}) == Reading(
        blocks={"total": 10, "free": 8, "used": 2, "cached": 1}
    )


@pytest.mark.parametrize("stats", [None, [], "x", 7, {}])
def test_what_is_no_object_with_blocks_is_no_reading(stats: object) -> None:
    assert parse_stats(stats) is None


@pytest.mark.parametrize("wrong", ["8", 8.5, -1, True, None])
def test_blocks_with_one_wrong_count_are_no_blocks(wrong: object) -> None:
    assert parse_stats({**SOUND, "num_free_gpu_blocks": wrong}) is None


@pytest.mark.parametrize(
    ("body", "loading"),
    [
        ({"status": "starting"}, Loading("starting")),
        ({"status": "loading", "bytes_done": 5, "bytes_total": 8}, Loading("loading", 62)),
        ({"status": "downloading", "bytes_done": 9, "bytes_total": 8}, Loading("downloading", 100)),
        ({"status": "loading", "bytes_done": 0, "bytes_total": 0}, Loading("loading")),
        ({"status": "loading", "bytes_done": "5", "bytes_total": 8}, Loading("loading")),
    ],
)
def test_progress_is_read_from_ready(body: object, loading: Loading) -> None:
    assert parse_ready(body) == Reading(loading=loading)


@pytest.mark.parametrize("body", [None, [], {}, {"status": "ready"}, {"status": ["loading"]}])
def test_what_tells_no_progress_is_no_reading(body: object) -> None:
    assert parse_ready(body) is None


def test_measured_memory_is_read_by_component() -> None:
    reading = parse_stats({**SOUND, "measured": {"weights": 7, "kv-cache": 0}})
    assert reading is not None
    assert reading.measured == {"weights": 7, "kv-cache": 0}


@pytest.mark.parametrize(
    "wrong", [None, [1], "x", {"weights": -1}, {"weights": "7"}, {str(i): 1 for i in range(99)}]
)
def test_measured_memory_that_makes_no_sense_leaves_the_blocks_alone(wrong: object) -> None:
    reading = parse_stats({**SOUND, "measured": wrong})
    assert reading is not None
    assert (reading.measured, reading.blocks is None) == ({}, False)
