"""Memory for a model's parameters, not yet filled.

Used by the models, which are built on the meta device first: shapes only, so that no wrong dtype
is ever allocated.
"""

from __future__ import annotations

import torch
from torch import nn

from qwen_engine.host_memory import HostMemory
from qwen_engine.layers import pages


def give_memory(
    model: nn.Module,
    *,
    dtype: torch.dtype,
    device: torch.device,
    memory: HostMemory | None = None,
) -> None:
    """Replace every parameter by empty memory of its shape; what is not a float keeps its type.

    nn.Module.to_empty does this too, but by operations on meta tensors that import sympy: 1.5 to
    3 s of CPU at every start.

    memory: a CPU's, to be filled by what is given out of it.
    """
    if memory is not None:
        memory.begin_to_use()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            kind = dtype if parameter.is_floating_point() else parameter.dtype
            given = pages.empty(parameter.shape, dtype=kind, device=device, memory=memory)
            setattr(module, name, nn.Parameter(given, requires_grad=False))
