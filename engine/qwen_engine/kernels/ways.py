"""The ways in which the C++ computes products with weights, and what it takes of their shapes.

Used by `library` and by whoever chooses among the ways. Knows no library.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

PANEL_ROWS = 32  # output rows packed side by side: kPanel in gemm.cpp

# With bfloat16 weights: `fma` multiplies in float32, `dot` by the bfloat16 dot product instruction,
# `tile` by AMX. With int8: the weights widened in registers, or a panel at a time first.
Kernel = Literal["fma", "dot", "tile"]
Int8Way = Literal["int8 fma", "int8 dot", "widened fma", "widened dot", "widened tile"]
INT8_WAYS: tuple[Int8Way, ...] = get_args(Int8Way)
WAYS: tuple[Kernel | Int8Way, ...] = (*get_args(Kernel), *INT8_WAYS)  # Way in products.h


def can_pack(weight: torch.Tensor) -> bool:
    """Say whether a weight [out, in] falls into whole panels of pairs."""
    out, size = weight.shape
    return out % PANEL_ROWS == 0 and size % 2 == 0


def whole_tiles(rows: int) -> int:
    """Return how many rows `tile` reads, of which the last may be of no use."""
    return -(-rows // 16) * 16


def scratch_values(x: torch.Tensor) -> int:
    """Return the float32 values that a product's rows [rows, in] take once they are packed."""
    return whole_tiles(len(x)) * max(x.shape[1], 64)
