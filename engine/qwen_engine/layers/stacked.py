"""Linear maps of one shape, one for each expert, in one tensor.

A mixture of experts has ten thousands of matrices: as tensors of their own each would be a mapping
of memory and a module. Products are computed as those of `linear`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from qwen_engine.kernels.ways import can_pack
from qwen_engine.layers import int8
from qwen_engine.layers.gemm import Gemm, MeasuredGemm, TorchGemm
from qwen_engine.layers.int8 import Target


class StackedLinear(nn.Module):
    """y = x·Wᵀ for one of `count` matrices W, each the rows of `parts` stacked in order."""

    def __init__(self, count: int, in_size: int, parts: Mapping[str, int]) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.in_size = in_size
        shape = (count, sum(parts.values()), in_size)
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self._gemm: Gemm = TorchGemm()

    def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Map [num_tokens, in_size] by the matrix of this number to [num_tokens, out_size]."""
        return self._gemm.linear(x, self.weight[index], None)

    def quantise(self) -> None:
        """Keep the weights in int8 from now on; before they have memory."""
        count, *each = self.weight.shape
        shape = (count, *int8.stored_shape(*each))
        values = torch.empty(shape, dtype=torch.int8, device=self.weight.device)
        self.weight = nn.Parameter(values, requires_grad=False)

    def use(self, gemm: MeasuredGemm) -> None:
        """Compute this way from now on; the weights are brought into its layout, in place."""
        if can_pack(self.weight[0]):
            for weight in self.weight:
                gemm.adopt(weight)
            self._gemm = gemm

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        """Yield each part of each matrix under its name, where a checkpoint has them one by one."""
        for index, weight in enumerate(self.weight):
            start = 0
            for name, size in self.parts.items():
                rows = weight[start : start + size]
                yield f"{prefix}{index}.{name}.weight", int8.target_of(rows)
                start += size

    @property
    def stacked_shape(self) -> tuple[int, int, int]:
        """That of all matrices in one tensor of a checkpoint: [count, out_size, in_size]."""
        return len(self.weight), sum(self.parts.values()), self.in_size

    def stacked_target(self, *, is_transposed: bool) -> Target:
        """Return what such a tensor is written to; transposed, it is [count, in_size, out_size]."""
        return _Stack([int8.target_of(weight) for weight in self.weight], is_transposed)


class _Stack:
    """Matrices that are filled from one tensor."""

    def __init__(self, matrices: list[Target], is_transposed: bool) -> None:
        self._matrices = matrices
        self._is_transposed = is_transposed

    @property
    def shape(self) -> torch.Size:
        """That of the checkpoint's tensor."""
        each = self._matrices[0].shape
        return torch.Size((len(self._matrices), *(each[::-1] if self._is_transposed else each)))

    def narrow(self, dim: int, start: int, length: int) -> _Stack:
        """Return some of the matrices."""
        assert dim == 0
        return _Stack(self._matrices[start : start + length], self._is_transposed)

    def copy_(self, source: torch.Tensor) -> _Stack:
        """Take over the checkpoint's tensor, of any float dtype."""
        for matrix, values in zip(self._matrices, source, strict=True):
            matrix.copy_(values.T if self._is_transposed else values)
        return self
