"""FP8 checkpoints: matrices in e4m3 with a scale for each block of 128 × 128.

A matrix is widened once, while it is read, into whatever keeps it. The scales lie beside it as
`<name>_scale_inv`; one multiplies by them, whatever that name says (transformers 5.24,
integrations/finegrained_fp8.py).
"""

from __future__ import annotations

import torch

from qwen_engine.layers.int8 import Target

BLOCK_SIZE = 128
SCALE_SUFFIX = "_scale_inv"
_CHUNK_VALUES = 2**22  # widened at once


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the scales of a matrix, or of a stack of them."""
    return (*shape[:-2], *(-(-size // BLOCK_SIZE) for size in shape[-2:]))


def widen_blocks(values: torch.Tensor, scales: torch.Tensor, target: Target) -> None:
    """Write e4m3 values [rows, columns] times their blocks' float32 scales to a target.

    Of a stack of matrices, [count, rows, columns], one after the other.
    """
    if values.ndim == 3:
        for index, matrix in enumerate(values):
            wide = torch.empty(matrix.shape)
            widen_blocks(matrix, scales[index], wide)
            target.narrow(0, index, 1).copy_(wide.unsqueeze(0))
        return
    num_rows, num_columns = values.shape
    step = max(1, _CHUNK_VALUES // num_columns // BLOCK_SIZE) * BLOCK_SIZE
    for start in range(0, num_rows, step):
        wide = values[start : start + step].float()
        blocks = scales[start // BLOCK_SIZE : (start + step) // BLOCK_SIZE]
        factors = blocks.repeat_interleave(BLOCK_SIZE, dim=0)[: len(wide)]
        wide *= factors.repeat_interleave(BLOCK_SIZE, dim=1)[:, :num_columns]
        target.narrow(0, start, len(wide)).copy_(wide)
