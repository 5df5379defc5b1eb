"""Tensors in huge pages, where the system gives them.

Used by the models and the worker; `host_memory` says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from qwen_engine.host_memory import HUGE_PAGE, HostMemory


def empty(
    shape: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    memory: HostMemory | None = None,
) -> torch.Tensor:
    """Return a tensor as torch.empty does; on a CPU its memory asks for huge pages.

    memory: of which it takes a part, if there is enough left. Otherwise the memory is the tensor's
        own: it goes when the last view of it does.

    Raises:
        RuntimeError: it cannot be had.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if memory is not None and num_bytes and (start := memory.take(num_bytes)) is not None:
        return _tensor(memory, start, shape, dtype)
    if device.type != "cpu" or num_bytes < HUGE_PAGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return _tensor(reserve(num_bytes), 0, shape, dtype)


def zeros(
    number: int,
    shape: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    memory: HostMemory | None,
) -> list[torch.Tensor]:
    """Return that many tensors of zeros; on a CPU they lie in `memory` one behind the other.

    memory: enough, and not yet used.

    Raises:
        RuntimeError: it cannot be had.
    """
    each = math.prod(shape) * dtype.itemsize
    if memory is None or each == 0:
        return [torch.zeros(tuple(shape), dtype=dtype, device=device) for _ in range(number)]
    memory.begin_to_use()
    return [_tensor(memory, place * each, shape, dtype) for place in range(number)]


def reserve(num_bytes: int) -> HostMemory:
    """Return memory whose pages are still to come.

    Raises:
        RuntimeError: it cannot be had.
    """
    try:
        return HostMemory(num_bytes)
    except (OSError, OverflowError, ValueError) as error:
        raise RuntimeError(f"{num_bytes:,} bytes cannot be mapped: {error}") from error


def _tensor(
    memory: HostMemory, start: int, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    flat = torch.frombuffer(memory.view, dtype=dtype, count=math.prod(shape), offset=start)
    return flat.view(tuple(shape))
