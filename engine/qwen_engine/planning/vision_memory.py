"""The bytes of pictures in our own engine: the tower's weights, its work, and what is kept.

Terms follow `models/vision` line by line. Called by `draft`.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.pictures import Pictures
from qwen_engine.planning.quantities import format_bytes
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, DTypeName, ModelShape
from qwen_engine.planning.vision import VisionShape
from qwen_engine.planning.weights import num_tower_parameters, tower_bytes

TILE_PATCHES = 1024  # models/vision_tiles.py


@dataclass(frozen=True, slots=True)
class TowerWork:
    """Bytes of one picture or video in the tower.

    Attributes:
        held_bytes: between two tiles, when a step of text may run.
        peak_bytes: the most, while no step runs.
    """

    held_bytes: int
    peak_bytes: int


def tower_line(model: ModelShape, dtype: DTypeName) -> LedgerLine:
    """Return the exact bytes of the tower's weights."""
    count, size = num_tower_parameters(model), BYTES_PER_ELEMENT[dtype]
    how = f"{count:,} parameters × {size} B ({dtype})"
    return LedgerLine("vision-tower", tower_bytes(model, dtype), how)


def encoder_cache_line(vision: VisionShape, dtype: DTypeName, num_tokens: int) -> LedgerLine:
    """Return the bytes of the embeddings that are kept."""
    size, parts = BYTES_PER_ELEMENT[dtype], 1 + len(vision.taps)
    how = f"{num_tokens:,} tokens × {parts} × {vision.out_hidden_size:,} × {size} B"
    return LedgerLine("encoder-cache", num_tokens * vision.embedding_size * size, how)


def picture_bytes(
    vision: VisionShape, dtype: DTypeName, pictures: Pictures, *, step_tokens: int, text_bytes: int
) -> int:
    """Return what pictures add to the peak of a step of text, which takes text_bytes.

    A picture is in the tower while steps run, and the rows of a step's own pictures lie together;
    or no step runs, and the tower is at its peak.
    """
    works = [
        tower_work(vision, dtype, tokens, num_values=values)
        for tokens, values in (
            (pictures.image_tokens, vision.patch_values // vision.temporal_patch_size),
            (pictures.video_tokens, vision.patch_values),
        )
    ]
    rows = min(step_tokens, pictures.request_tokens) * vision.embedding_size
    held = max(work.held_bytes for work in works) + rows * BYTES_PER_ELEMENT[dtype]
    return max(held, max(work.peak_bytes for work in works) - text_bytes)


def tower_work(
    vision: VisionShape, dtype: DTypeName, num_tokens: int, *, num_values: int
) -> TowerWork:
    """Return the bytes of a picture of so many tokens, each of whose patches has num_values."""
    size, hidden = BYTES_PER_ELEMENT[dtype], vision.hidden_size
    patches = num_tokens * vision.merge
    row, turns = hidden * size, 2 * vision.head_dim * 4  # cosines and sines are float32
    kept = num_tokens * vision.out_hidden_size * size  # by each merger
    cast = vision.patch_values * size if size < 4 else row
    taps, blocks = len(vision.taps) * kept, patches * (4 * row + turns)
    phases = {
        # float32 pixels, the same for each frame of a patch, and these in the tower's type
        "patches": patches * (4 * num_values + 4 * vision.patch_values + cast),
        # pixels, patches, the grid of positions resampled and once more in the order of merging
        "positions": patches * (4 * num_values + row + 2 * 4 * hidden),
        # input and output, queries, keys and values of all patches, and a tile's own
        "blocks": blocks + taps + _tile(vision, patches, size),
        # a merger's input, this normed, a product and its activation
        "merger": blocks + taps + kept,
        # the last join: its result is in the cache
        "result": patches * (row + turns) + taps + kept,
    }
    return TowerWork(blocks + taps, max(phases.values()))


def _tile(vision: VisionShape, patches: int, size: int) -> int:
    rows, hidden = min(patches, TILE_PATCHES), vision.hidden_size
    attention = 3 * hidden * size + 3 * 2 * hidden * 4  # queries and keys turned in float32
    feed_forward = 2 * vision.intermediate_size * size + 2 * hidden * size
    return rows * max(attention, feed_forward)


def pixels_bytes(vision: VisionShape, num_tokens: int) -> int:
    """Return the bytes of the cut pixels of as many tokens, which requests hold."""
    return num_tokens * vision.merge * vision.patch_values


def with_pictures(activations: LedgerLine, num_bytes: int) -> LedgerLine:
    """Return the line of activations with what pictures add."""
    how = f"{activations.how} + pictures {format_bytes(num_bytes)}"
    return LedgerLine("activations", activations.num_bytes + num_bytes, how)
