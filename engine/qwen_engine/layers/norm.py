"""Root-mean-square normalisation, as Qwen and Llama have it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary


class RMSNorm(nn.Module):
    """Normalise over the last dimension and scale by a learned weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.library: NativeLibrary | None = None  # for bfloat16 on a CPU

    def forward(self, hidden: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise; `delta` is added to `hidden` first, in place: one pass over both."""
        if self.library is not None:
            return self.library.norm(hidden, self.weight, self.eps, delta)
        if delta is not None:
            hidden += delta
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
