"""Pieces of pictures fit into turns, and hold every patch once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_engine.models import vision_pace
from qwen_engine.models.vision_pace import LEAST_ROWS, Pace
from qwen_engine.models.vision_tiles import TILE_PATCHES, Tile, cut_tiles

FRAMES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 700).map(lambda quarter: 4 * quarter)),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=100)
@given(FRAMES, st.integers(1, 2000))
def test_a_cut_tile_has_the_same_patches_which_see_the_same_frames(
    frames: list[tuple[int, int]], num_rows: int
) -> None:
    def sees(tile: Tile) -> list[tuple[int, int]]:
        """Return each patch with the first of its frame."""
        frame, first = tile.frame, tile.seen.start
        return [(row, first + (row - first) // frame * frame)
                for row in range(tile.rows.start, tile.rows.stop)]  # fmt: skip

    for tile in cut_tiles(frames):
        parts = tile.cut(num_rows)
        assert [pair for part in parts for pair in sees(part)] == sees(tile)
        assert parts[0].num_rows <= num_rows
        assert all(part.num_frames == 1 or part.rows == part.seen for part in parts)


class Clock:
    """Time that passes only as told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vision_pace, "time", clock)
    return clock


def test_without_a_turn_pieces_are_tiles() -> None:
    tiles = list(cut_tiles([(1, 5000), (3, 100)]))
    assert list(Pace().pieces("x", tiles, lambda _: 1.0)) == tiles


def test_once_the_speed_is_known_pieces_fill_the_turn_and_no_more(clock: Clock) -> None:
    pace, rows_per_second = Pace(), 1000
    pieces = pace.row_pieces("x", 6 * TILE_PATCHES, operations=7.0)
    turns: list[float] = []
    rows = 0
    while rows < 5 * TILE_PATCHES:
        pace.start(0.5)
        began = clock.now
        while True:
            piece = next(pieces)
            rows = piece.stop
            took = (piece.stop - piece.start) / rows_per_second
            clock.now += took
            pace.took(took)
            if pace.has_ended:
                break
        turns.append(clock.now - began)
    assert max(turns) <= 0.5
    assert min(turns) > 0.5 - 2 * LEAST_ROWS / rows_per_second


def test_what_became_slower_gets_smaller_pieces(clock: Clock) -> None:
    pace, sizes = Pace(), []
    pieces = pace.row_pieces("x", 10 * TILE_PATCHES, operations=1.0)
    for rows_per_second in [1000] * 3 + [250] * 6:
        pace.start(0.4)
        piece = next(pieces)
        sizes.append(piece.stop - piece.start)
        clock.now += sizes[-1] / rows_per_second
        pace.took(sizes[-1] / rows_per_second)
    assert sizes[0] == LEAST_ROWS  # nothing is known yet
    assert sizes[1:3] == [400, 400]
    assert max(sizes[-2:]) <= 112  # 250 × 0.4 are 100


def test_where_not_even_the_least_piece_fits_one_is_computed_all_the_same(clock: Clock) -> None:
    pace = Pace()
    pieces = pace.row_pieces("x", TILE_PATCHES, operations=1.0)
    for _ in range(3):
        pace.start(0.001)
        piece = next(pieces)
        assert piece.stop - piece.start == LEAST_ROWS
        clock.now += 1.0
        pace.took(1.0)
        assert pace.has_ended
