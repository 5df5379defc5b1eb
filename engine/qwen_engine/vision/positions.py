"""Positions of a prompt with pictures: three of each token, for time, row and column.

Text moves all three on by one; a picture's tokens have its place in time and their own row and
column, and what follows starts after the longer side. After transformers 5.24
models/qwen3_vl/modeling_qwen3_vl.py, get_rope_index. Used by `batch`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qwen_engine.vision.spans import Span

Positions = NDArray[np.int64]  # [3, num_tokens]


class PromptPositions:
    """The positions of one sequence, computed once for the prompt and cut for each step."""

    def __init__(self, num_prompt_tokens: int, spans: Sequence[Span]) -> None:
        self._prompt, self.delta = compute_positions(num_prompt_tokens, spans)

    def cut(self, start: int, num_tokens: int) -> Positions:
        """Return those of the tokens [start, start + num_tokens), of the prompt or after it."""
        end, prompt_end = start + num_tokens, self._prompt.shape[1]
        if end <= prompt_end:
            return self._prompt[:, start:end]
        later = np.arange(max(start, prompt_end), end) + self.delta
        parts = (self._prompt[:, start:prompt_end], np.broadcast_to(later, (3, len(later))))
        return np.concatenate(parts, axis=1)


def compute_positions(num_tokens: int, spans: Sequence[Span]) -> tuple[Positions, int]:
    """Return the positions of a prompt and what to add to an index after its end."""
    positions = np.empty((3, num_tokens), dtype=np.int64)
    index = place = 0  # in the prompt; and the position that comes next
    for span in spans:
        text = span.start - index
        positions[:, index : span.start] = np.arange(place, place + text)
        place += text
        _fill(positions[:, span.start : span.end], span, place)
        place += max(span.rows, span.columns)
        index = span.end
    positions[:, index:] = np.arange(place, place + num_tokens - index)
    return positions, place - index


def _fill(positions: Positions, span: Span, place: int) -> None:
    rows, columns = np.divmod(np.arange(span.num_tokens), span.columns)
    positions[0] = place
    positions[1] = place + rows
    positions[2] = place + columns
