"""The gate of a feed-forward: used by dense ones and by experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary


def swiglu(both: torch.Tensor, library: NativeLibrary | None) -> torch.Tensor:
    """Return silu(gate) · up of [rows, 2 × size], gate first; with a library in C++."""
    if library is not None:
        return library.gate(both)
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up
