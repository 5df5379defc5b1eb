"""The feed-forward of a dense decoder layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.linear import Linear
from qwen_engine.layers.swiglu import swiglu
from qwen_engine.model_config import ModelConfig


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner, hidden = config.intermediate_size, config.hidden_size
        self.gate_up = Linear(hidden, {"gate_proj": inner, "up_proj": inner}, bias=config.mlp_bias)
        self.down = Linear(inner, {"down_proj": hidden}, bias=config.mlp_bias)
        self.library: NativeLibrary | None = None  # for bfloat16 on a CPU

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = self.down(swiglu(self.gate_up(hidden), self.library))
        return mapped

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.gate_up.checkpoint_tensors(prefix)
        yield from self.down.checkpoint_tensors(prefix)
