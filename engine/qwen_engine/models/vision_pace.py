"""How much of a picture is computed before others have their turn.

The encoder says how long a turn is and how long each piece took; the tower asks here how many rows
fit into what is left of the turn. Knows numbers and a clock only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

from qwen_engine.models.vision_tiles import TILE_PATCHES, Tile

# A piece has a multiple of so many rows; with fewer a product reads its weight for next to nothing.
LEAST_ROWS = 16
_NEWEST = 0.5  # the share of the newest measurement in the mean


class Pace:
    """The time left of a turn, and how fast each kind of work was so far; endless at first."""

    def __init__(self) -> None:
        self._end = math.inf
        self._rates: dict[str, float] = {}  # by kind, operations per second
        self._piece: tuple[str, float] | None = None  # the one not yet timed: kind, operations
        self._least = 0.0  # seconds that the least piece of the last kind takes

    def start(self, seconds: float) -> None:
        """Begin a turn of so long."""
        self._end = time.monotonic() + seconds

    def took(self, seconds: float) -> None:
        """Take note of how long the last piece took."""
        if self._piece is None:
            return
        (kind, operations), self._piece = self._piece, None
        found = operations / max(seconds, 1e-6)
        known = self._rates.get(kind, found)
        self._rates[kind] = known + _NEWEST * (found - known)

    @property
    def has_ended(self) -> bool:
        """Not even the least piece fits into the turn any more."""
        return time.monotonic() + self._least >= self._end

    def pieces(
        self, kind: str, tiles: Iterable[Tile], operations: Callable[[Tile], float]
    ) -> Iterator[Tile]:
        """Yield the tiles, cut into pieces that fit: one for each step of the caller.

        operations: of each row of a tile.
        """
        for tile in tiles:
            rest = [tile]
            while rest:
                each = operations(rest[-1])
                piece, *others = rest.pop().cut(self._rows(kind, each))
                rest.extend(reversed(others))
                self._piece = kind, each * piece.num_rows
                yield piece

    def row_pieces(self, kind: str, num_rows: int, operations: float) -> Iterator[slice]:
        """Yield slices of rows of which none needs another, in the same way."""
        starts = range(0, num_rows, TILE_PATCHES)
        slices = (slice(start, min(start + TILE_PATCHES, num_rows)) for start in starts)
        tiles = (Tile(rows, rows, 1) for rows in slices)
        return (piece.rows for piece in self.pieces(kind, tiles, lambda _: operations))

    def _rows(self, kind: str, operations: float) -> int:
        if self._end == math.inf:
            return TILE_PATCHES
        rate = self._rates.get(kind)
        if rate is None:
            return LEAST_ROWS
        self._least = LEAST_ROWS * operations / rate
        fitting = int((self._end - time.monotonic()) * rate / operations)
        return max(LEAST_ROWS, fitting // LEAST_ROWS * LEAST_ROWS)
