"""How the patches of pictures fall into pieces of work; see `vision`. Knows numbers only."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# 1,024 × 4,304 values of the feed-forward are 17 MB in float32.
TILE_PATCHES = 1024
# Each patch of a tile sees all of its frame; a tile of a large picture is therefore smaller.
TILE_PAIRS = 2**22
TILE_STEP = 64  # attention takes queries by the 32, and products rows by the dozen


@dataclass(frozen=True, slots=True)
class Tile:
    """Patches that are computed at once: some whole frames, or a part of one.

    Attributes:
        rows: the patches, among all that are packed.
        seen: the patches of the frames they belong to.
        num_frames: that `seen` has.
    """

    rows: slice
    seen: slice
    num_frames: int

    @property
    def num_rows(self) -> int:
        return len(range(self.rows.start, self.rows.stop))

    @property
    def frame(self) -> int:
        """Patches of a frame, all of which each row sees."""
        return len(range(self.seen.start, self.seen.stop)) // self.num_frames

    def cut(self, num_rows: int) -> list[Tile]:
        """Return tiles that have the same patches; the first has no more rows than these."""
        if num_rows >= self.num_rows:
            return [self]
        if self.num_frames == 1:
            border = self.rows.start + num_rows
            ends = slice(self.rows.start, border), slice(border, self.rows.stop)
            return [Tile(rows, self.seen, 1) for rows in ends]
        size = self.num_rows // self.num_frames
        count = max(1, num_rows // size)  # of whole frames
        border = self.rows.start + count * size
        first, rest = slice(self.rows.start, border), slice(border, self.rows.stop)
        head, tail = Tile(first, first, count), Tile(rest, rest, self.num_frames - count)
        return [*head.cut(num_rows), tail]


def cut_tiles(frames: Iterable[tuple[int, int]]) -> Iterator[Tile]:
    """Cut packed frames, given as (how many, patches of each); equal neighbours share a tile."""
    start = 0
    for size, same in itertools.groupby(frames, key=lambda frame: frame[1]):
        end = start + size * sum(count for count, _ in same)
        if size <= TILE_PATCHES:
            together = TILE_PATCHES // size
            for first in range(start, end, together * size):
                rows = slice(first, min(first + together * size, end))
                yield Tile(rows, rows, (rows.stop - first) // size)
        else:
            step = max(128, min(TILE_PATCHES, TILE_PAIRS // size) // TILE_STEP * TILE_STEP)
            for frame in range(start, end, size):
                seen = slice(frame, frame + size)
                for first in range(frame, seen.stop, step):
                    yield Tile(slice(first, min(first + step, seen.stop)), seen, 1)
        start = end
