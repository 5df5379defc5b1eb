"""Weights in int8: what a row is, how it is made while a checkpoint is read, and plain products.

A weight [out, in] is kept as int8 [out, in + 4]: each row's values, and behind them its scale in
float32. One tensor, so whatever handles a weight need not know. Right for every dtype and device;
`int8_gemm` has the fast products for bfloat16 on a CPU.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from qwen_engine.errors import UnsupportedModelError

SCALE_BYTES = 4  # behind each row
_LARGEST = 127.0
# Widened at once, so that no second copy of a weight ever exists: 1 MiB of float32 that stays in
# the cache while rows are made, 16 MiB for a product.
_QUANTISED_VALUES, _MULTIPLIED_VALUES = 2**18, 2**22


class Target(Protocol):
    """What a checkpoint's tensor is written to: a tensor, or what keeps it in another form."""

    @property
    def shape(self) -> torch.Size: ...

    def narrow(self, dim: int, start: int, length: int, /) -> Target:
        """Return some of the rows."""
        ...

    def copy_(self, source: torch.Tensor, /) -> object:
        """Take over the values of a tensor of the same shape."""
        ...


def stored_shape(out_size: int, in_size: int) -> tuple[int, int]:
    """Return the shape of a weight [out, in] in int8.

    Raises:
        UnsupportedModelError: its rows are no multiple of 4, so that scales would not be aligned.
    """
    if in_size % SCALE_BYTES:
        raise UnsupportedModelError(
            f"quantization=int8 needs matrices whose rows are a multiple of {SCALE_BYTES} long, "
            f"and this model has one of {in_size}: leave --quantization out"
        )
    return out_size, in_size + SCALE_BYTES


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of plain rows: values [rows, in] and scales [rows, 1]."""
    in_size = weight.shape[1] - SCALE_BYTES
    return weight[:, :in_size], weight[:, in_size:].view(torch.float32)


def target_of(weight: torch.Tensor) -> torch.Tensor | Int8Rows:
    """Return what a checkpoint's tensor is written to: the rows, or what quantises into them."""
    return Int8Rows(weight) if weight.dtype == torch.int8 else weight


class Int8Rows:
    """Rows of an int8 weight, which quantise what is copied to them."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._values, self._scales = split(weight)
        self._weight = weight

    @property
    def shape(self) -> torch.Size:
        """That of the values: the checkpoint's."""
        return self._values.shape

    def narrow(self, dim: int, start: int, length: int) -> Int8Rows:
        """Return some of the rows."""
        assert dim == 0
        return Int8Rows(self._weight.narrow(0, start, length))

    def copy_(self, source: torch.Tensor) -> Int8Rows:
        """Quantise [rows, in] of any float dtype: the largest magnitude of each row is 127."""
        step = max(1, _QUANTISED_VALUES // source.shape[1])
        for start in range(0, len(source), step):
            rows = slice(start, start + step)
            wide = source[rows].to(self._values.device, torch.float32)
            scales = wide.abs().amax(dim=1, keepdim=True) / _LARGEST
            quotients = wide / torch.where(scales > 0, scales, 1.0)
            self._values[rows] = quotients.round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
            self._scales[rows] = scales
        return self


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Map [rows, in] by a plain int8 weight to [rows, out], widening some of it at a time."""
    values, scales = split(weight)
    step = max(1, _MULTIPLIED_VALUES // values.shape[1])
    parts = [
        functional.linear(
            x, (values[start : start + step] * scales[start : start + step]).to(x.dtype)
        )
        for start in range(0, len(values), step)
    ]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return y if bias is None else y + bias


def lookup(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return these rows of a plain int8 weight in float32."""
    values, scales = split(weight.index_select(0, rows))
    return values * scales
