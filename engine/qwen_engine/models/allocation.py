"""Memory for a model's parameters, not yet filled.

Used by the models, which are built on the meta device first: shapes only, so that no wrong dtype
is ever allocated.
"""

from __future__ import annotations

import torch
from torch import nn


def give_memory(model: nn.Module, *, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every parameter by empty memory of its shape.

    nn.Module.to_empty does this too, but by operations on meta tensors that import sympy: 1.5 to
    3 s of CPU at every start.
    """
    for module in model.modules():
        for name, shape in [(n, p.shape) for n, p in module.named_parameters(recurse=False)]:
            memory = torch.empty(shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=False))
