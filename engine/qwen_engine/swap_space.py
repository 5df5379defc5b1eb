"""The host memory that swapped blocks lie in, and all copies of whole blocks.

Used by `worker`. It mirrors the KV cache: the same tensors per layer with another number of blocks,
so that one run of blocks is one contiguous piece of memory in each. Knows block ids, not
sequences; relies on nothing of a cache's layout but that its first dimension is blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from qwen_engine.errors import ConfigError
from qwen_engine.sequence import BlockCopies

Caches = list[tuple[torch.Tensor, torch.Tensor]]  # per layer keys and values, [num_blocks, …]


class Run(NamedTuple):
    """Blocks that follow each other both where they are and where they go."""

    source: int
    target: int
    length: int


def find_runs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Return the same copies in as few runs as possible.

    Many small copies are what made swapping slower than recomputing in early vLLM (vllm#12).
    """
    runs: list[Run] = []
    for source, target in sorted(pairs):
        if runs and (source, target) == (
            runs[-1].source + runs[-1].length,
            runs[-1].target + runs[-1].length,
        ):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(Run(source, target, 1))
    return runs


class SwapSpace:
    """Executes a batch's copies in the order of the device's stream: nobody waits on the host."""

    def __init__(self, caches: Caches, num_blocks: int) -> None:
        """Allocate `num_blocks` beside the device's caches.

        Raises:
            ConfigError: the host's memory does not hold them, or cannot be pinned.
        """
        self._caches = caches
        self._swapped = [
            (_allocate(keys, num_blocks), _allocate(values, num_blocks)) for keys, values in caches
        ]

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for layer in self._swapped for part in layer)

    def execute(self, copies: BlockCopies) -> None:
        """Make the copies."""
        _copy(self._caches, self._swapped, copies.swap_outs)
        _copy(self._swapped, self._caches, copies.swap_ins)
        _copy(self._caches, self._caches, copies.duplicates)


def _copy(sources: Caches, targets: Caches, pairs: tuple[tuple[int, int], ...]) -> None:
    if not pairs:
        return
    runs = find_runs(pairs)
    for source, target in _parts(sources, targets):
        for run in runs:
            piece = source.narrow(0, run.source, run.length)
            target.narrow(0, run.target, run.length).copy_(piece, non_blocking=True)


def _parts(sources: Caches, targets: Caches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for source, target in zip(sources, targets, strict=True):
        yield from zip(source, target, strict=True)


def _allocate(part: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Return host memory for `num_blocks` of what `part` has on its device."""
    shape = (num_blocks, *part.shape[1:])
    try:
        memory = torch.zeros(shape, dtype=part.dtype)
    except RuntimeError as error:
        raise ConfigError("num_cpu_blocks", num_blocks, f"cannot be allocated: {error}") from error
    if part.is_cuda and memory.nbytes:
        _pin(memory)
    return memory


def _pin(memory: torch.Tensor) -> None:
    """Pin the pages in place: torch's pinned allocator rounds sizes up to a power of two.

    As sglang does for its host pool (srt/mem_cache/memory_pool_host.py).
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if error != runtime.cudaError.success:
        why = f"{memory.nbytes:,} bytes of host memory cannot be pinned: {error}"
        raise ConfigError("num_cpu_blocks", len(memory), why)
