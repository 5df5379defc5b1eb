"""Linear maps, several of a checkpoint's matrices fused into one where they share an input.

One large matrix product is faster than three small ones, above all for the few rows of a
decoding step. The parts stay addressable, so the loader writes each straight into its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from qwen_engine.kernels.ways import can_pack
from qwen_engine.layers import int8
from qwen_engine.layers.gemm import Gemm, MeasuredGemm, TorchGemm
from qwen_engine.layers.int8 import Target


class Linear(nn.Module):
    """y = x·Wᵀ + b, with W the rows of `parts` stacked in order."""

    def __init__(self, in_size: int, parts: Mapping[str, int], *, bias: bool = False) -> None:
        super().__init__()
        out_size = sum(parts.values())
        self.parts = dict(parts)
        self.in_size = in_size
        self.weight = nn.Parameter(torch.empty(out_size, in_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_size), requires_grad=False) if bias else None
        self._gemm: Gemm = TorchGemm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, in_size] to [num_tokens, out_size]."""
        return self._gemm.linear(x, self.weight, self.bias)

    def quantise(self) -> None:
        """Keep the weight in int8 from now on; before it has memory."""
        shape = int8.stored_shape(*self.weight.shape)
        values = torch.empty(shape, dtype=torch.int8, device=self.weight.device)
        self.weight = nn.Parameter(values, requires_grad=False)

    def use(self, gemm: MeasuredGemm) -> None:
        """Compute this way from now on; the weight is brought into its layout, in place."""
        if can_pack(self.weight):
            gemm.adopt(self.weight)
            self._gemm = gemm

    def is_packed_for(self, gemm: MeasuredGemm) -> bool:
        """Say whether `gemm` computes this, with weights in the C++ kernels' layout."""
        return self._gemm is gemm and gemm.choice.is_packed

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        """Yield each part under its name in the checkpoint, as a view to be written into."""
        start = 0
        for name, size in self.parts.items():
            yield f"{prefix}{name}.weight", int8.target_of(self.weight[start : start + size])
            if self.bias is not None:
                yield f"{prefix}{name}.bias", self.bias[start : start + size]
            start += size
