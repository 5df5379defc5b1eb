"""What an engine says of itself is checked before it is believed."""

from __future__ import annotations

import pytest

from qwen_operator.scrape import parse_stats

SOUND = {
    "num_total_gpu_blocks": 10,
    "num_free_gpu_blocks": 8,
    "num_used_gpu_blocks": 2,
    "num_cached_gpu_blocks": 1,
}


def test_blocks_and_progress_are_read() -> None:
    reading = parse_stats({**SOUND, "load_progress": 0.625, "more": [1]})
    assert reading is not None
    assert reading.blocks == {"total": 10, "free": 8, "used": 2, "cached": 1}
    assert reading.loaded == 62


@pytest.mark.parametrize("stats", [None, [], "x", 7])
def test_what_is_no_object_is_no_reading(stats: object) -> None:
    assert parse_stats(stats) is None


@pytest.mark.parametrize("wrong", ["8", 8.5, -1, True, None])
def test_blocks_with_one_wrong_count_are_no_blocks(wrong: object) -> None:
    reading = parse_stats({**SOUND, "num_free_gpu_blocks": wrong})
    assert reading is not None
    assert reading.blocks is None


@pytest.mark.parametrize("wrong", ["0.5", -0.1, 1.1, True, float("nan")])
def test_progress_outside_zero_to_one_is_none(wrong: object) -> None:
    reading = parse_stats({"load_progress": wrong})
    assert reading is not None
    assert reading.loaded is None
