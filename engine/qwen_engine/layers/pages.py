"""Memory for weights and for keys and values: in huge pages, where the system gives them.

Used by the decoder and the worker. A step reads every weight once, so with pages of 4 KiB it walks
page tables for each of 300,000 pages of Qwen3-0.6B.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch

HUGE_PAGE = 2**21  # bytes, on x86-64 and on arm64 with pages of 4 KiB


def empty(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor as torch.empty does; on a CPU its memory asks for huge pages.

    Linux gives them where /sys/kernel/mm/transparent_hugepage/enabled says madvise or always. The
    memory is the tensor's own: it goes when the last view of it does.

    Raises:
        RuntimeError: it cannot be had.
    """
    mapped = _map(math.prod(shape) * dtype.itemsize) if device.type == "cpu" else None
    if mapped is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return mapped.view(dtype).view(tuple(shape))


def zeros(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor as torch.zeros does, every page of it in place; see `empty`."""
    mapped = _map(math.prod(shape) * dtype.itemsize) if device.type == "cpu" else None
    if mapped is None:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    mapped[:: mmap.PAGESIZE].zero_()  # the system gives pages of zeros when they are written to
    return mapped.view(dtype).view(tuple(shape))


def _map(num_bytes: int) -> torch.Tensor | None:
    """Return [num_bytes] of zeros whose pages are still to come; None: torch shall do it.

    Whole huge pages only: a last one, partly used, would take 1 MiB too much on average.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if num_bytes < HUGE_PAGE or advice is None:
        return None
    try:  # older kernels begin anywhere
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        start = -whole.data_ptr() % HUGE_PAGE
        memory.madvise(advice, start, num_bytes // HUGE_PAGE * HUGE_PAGE)
    except (OSError, OverflowError):
        return None
    return whole[start : start + num_bytes]
