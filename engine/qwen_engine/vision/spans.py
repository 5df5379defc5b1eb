"""Where pictures stand in a prompt: the runs of placeholder tokens, and what follows from them.

Pure facts about positions in a sequence, read by the scheduler (which item a step needs), by the
block manager (what a block's content depends on) and by the worker (which rows of the encoder's
output go where). Knows no numpy and no torch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A run of placeholders that stand for one frame.

    Attributes:
        start: position of the first one in the prompt.
        rows, columns: of the frame's tokens.
        item: which of the prompt's media, in the order of their appearance.
        first_row: of the item's embeddings, the one that the first placeholder takes.
    """

    start: int
    rows: int
    columns: int
    item: int
    first_row: int = 0

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Overlap:
    """The part of a span that a step computes.

    Attributes:
        offset: of the part's first token among those that the step computes.
        first_row: of the item's embeddings.
    """

    item: int
    offset: int
    first_row: int
    num_tokens: int


def overlaps(spans: Sequence[Span], start: int, num_tokens: int) -> Iterator[Overlap]:
    """Yield, in order, what the tokens [start, start + num_tokens) have of the spans.

    The embeddings and the DeepStack rows of a chunk follow from this alone, so they are right
    wherever a prompt is cut and whatever was found in the cache.
    """
    end = start + num_tokens
    first = bisect.bisect_right(spans, start, key=lambda span: span.end)
    for index in range(first, len(spans)):
        span = spans[index]
        if span.start >= end:
            return
        low, high = max(start, span.start), min(end, span.end)
        yield Overlap(span.item, low - start, span.first_row + low - span.start, high - low)


def block_keys(
    spans: Sequence[Span], keys: Sequence[bytes], start: int, num_tokens: int
) -> list[tuple[str, bytes]]:
    """Return what the block [start, start + num_tokens) depends on besides its token ids.

    For each item in it the content's hash and which row the block's first position would take,
    so that neither two pictures nor two parts of one are ever taken for each other. `keys` are
    the items' hashes. Placeholders alone look the same for every picture (LMCache#690).
    """
    parts = overlaps(spans, start, num_tokens)
    places = ((part.item, part.first_row - part.offset) for part in parts)
    return [("media", keys[item] + row.to_bytes(8, "little", signed=True)) for item, row in places]
