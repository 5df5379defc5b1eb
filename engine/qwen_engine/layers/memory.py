"""Memory for weights: in huge pages, where the system gives them.

Used by the decoder. A step reads every weight once, so with pages of 4 KiB it walks page tables for
each of 300,000 pages of Qwen3-0.6B.
"""

from __future__ import annotations

import math
import mmap

import torch

HUGE_PAGE = 2**21  # bytes, on x86-64 and on arm64 with pages of 4 KiB


def empty_weight(shape: torch.Size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor as torch.empty does; on a CPU its memory asks for huge pages.

    Linux gives them where /sys/kernel/mm/transparent_hugepage/enabled says madvise or always. The
    memory is the tensor's own: it goes when the last view of it does.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if device.type != "cpu" or num_bytes < HUGE_PAGE or advice is None:
        return torch.empty(shape, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=flags)  # older kernels begin anywhere
    try:
        memory.madvise(advice)
    except OSError:  # a kernel without huge pages
        return torch.empty(shape, dtype=dtype)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + num_bytes].view(dtype).view(shape)
