"""Keys and values in 8 bits, each token's head with a scale of its own.

Keys or values of a layer are then [num_blocks, bytes of a block]: a block has its values
[block_size, num_kv_heads, head_dim] first and their scales [block_size, num_kv_heads] behind them,
so whatever copies blocks copies both. The tensor's dtype says how the values are written.

What is stored of a token depends on that token alone, so neither chunks nor preemption change
it. `kernels/cache.h` writes and reads the same bytes.
"""

from __future__ import annotations

import torch

SCALE_DTYPE = torch.bfloat16  # float32's range, and a 64th or less of the values' bytes
# The largest magnitude that is stored: int8 without -128, so that signs are alike; e4m3's own.
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def is_eight_bit(part: torch.Tensor) -> bool:
    """Say whether keys or values of a layer are in 8 bits."""
    return part.dtype in _LARGEST


def row_bytes(head_dim: int) -> int:
    """Return the bytes of one token's head, its scale included."""
    return head_dim + SCALE_DTYPE.itemsize


def num_kv_heads(part: torch.Tensor, block_size: int, head_dim: int) -> int:
    """Return the heads of keys or values, in 8 bits or not."""
    if not is_eight_bit(part):
        return part.shape[2]
    return part.shape[1] // (block_size * row_bytes(head_dim))


def split(
    blocks: torch.Tensor, num_kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of [num_blocks, bytes]: values and scales, in the shapes named above."""
    num_bytes = blocks.shape[1] // row_bytes(head_dim) * head_dim
    values, scales = blocks[:, :num_bytes], blocks[:, num_bytes:].view(SCALE_DTYPE)
    return (
        values.view(len(blocks), -1, num_kv_heads, head_dim),
        scales.view(len(blocks), -1, num_kv_heads),
    )


def store(blocks: torch.Tensor, slots: torch.Tensor, new: torch.Tensor) -> None:
    """Write new [num_tokens, num_kv_heads, head_dim] to their slots [num_tokens]."""
    values, scales = split(blocks, new.shape[1], new.shape[2])
    where = slots // values.shape[1], slots % values.shape[1]
    new_values, scales[where] = quantise(new, blocks.dtype)
    values.view(torch.int8)[where] = new_values.view(torch.int8)


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [..., size] as values of that dtype and the scale [...] of each row.

    A row with anything that is not finite comes back as not a number.
    """
    wide, largest = x.float(), _LARGEST[dtype]
    scales = (wide.abs().amax(dim=-1) / largest).to(SCALE_DTYPE)
    divisor = scales.float().unsqueeze(-1)
    is_sound = (divisor > 0) & divisor.isfinite()
    values = torch.where(is_sound, wide / divisor, 0.0).clamp(-largest, largest)
    return (values.round() if dtype == torch.int8 else values).to(dtype), scales


def widen(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what was quantised, rounded to `dtype` once."""
    wide = dtype if dtype == torch.bfloat16 else torch.float32  # bfloat16 multiplies in float32
    return (values.to(wide) * scales.to(wide).unsqueeze(-1)).to(dtype)
