"""Paged attention in C++ on a CPU: bfloat16, the cache read where it lies, nothing gathered.

Of prompts it is small matrix products, with the kernel that `choose_kernel` measured fastest: the
dot product of bfloat16 takes half as long as multiplying in float32 on an AMD Zen 5, and 1.7
times as long on an Intel Sapphire Rapids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from qwen_engine.kernels.library import ATTENTION_SIZES, NativeLibrary
from qwen_engine.kernels.ways import Kernel
from qwen_engine.layers.attention.interface import AttentionMetadata
from qwen_engine.stopwatch import time_in_turns

log = logging.getLogger(__name__)

_PROBE_TOKENS, _PROBE_BLOCK = 256, 32  # of a prompt with two heads: some ms
_PROBE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class NativeStep:
    """See `AttentionStep`."""

    library: NativeLibrary
    tables: torch.Tensor
    starts: torch.Tensor
    contexts: torch.Tensor
    block_size: int

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.library.attend(
            query,
            (keys, values),
            block_size=self.block_size,
            tables=self.tables,
            starts=self.starts,
            contexts=self.contexts,
        )


@dataclass(frozen=True, slots=True)
class NativeBackend:
    """See `AttentionBackend`."""

    library: NativeLibrary

    def prepare(
        self, metadata: AttentionMetadata, *, dtype: torch.dtype, device: torch.device
    ) -> NativeStep:
        assert dtype == torch.bfloat16
        assert device.type == "cpu"
        return NativeStep(
            self.library,
            tables=torch.from_numpy(metadata.block_tables),
            starts=torch.from_numpy(metadata.query_starts),
            contexts=torch.from_numpy(metadata.context_lens),
            block_size=metadata.block_size,
        )


def choose_kernel(library: NativeLibrary | None, head_dim: int) -> None:
    """Have the library, if it attends at all, do so with the kernel that is fastest at prompts."""
    if library is None or head_dim not in ATTENTION_SIZES or len(library.kernels) == 1:
        return
    probe = _probe(library, head_dim)
    works = {kernel: partial(probe, kernel) for kernel in library.kernels}
    times = time_in_turns(
        works,
        _PROBE_SECONDS,
        num_threads=torch.get_num_threads(),
        processor_seconds=library.processor_seconds,
    )
    library.attention = min(times, key=times.__getitem__)
    tried = ", ".join(f"{kernel} {us}" for kernel, us in times.items())
    log.info("Attention of prompts: %s (%s µs)", library.attention, tried)


def _probe(library: NativeLibrary, head_dim: int) -> Callable[[Kernel], None]:
    """Return attention of a prompt with two heads, by the kernel that is named."""
    num_blocks = _PROBE_TOKENS // _PROBE_BLOCK
    cache = torch.rand(num_blocks, _PROBE_BLOCK, 2, head_dim).bfloat16()
    query = torch.rand(_PROBE_TOKENS, 2, head_dim).bfloat16()
    step = NativeStep(
        library,
        tables=torch.arange(num_blocks)[None, :],
        starts=torch.tensor([0, _PROBE_TOKENS]),
        contexts=torch.tensor([_PROBE_TOKENS]),
        block_size=_PROBE_BLOCK,
    )

    def attend(kernel: Kernel) -> None:
        library.attention = kernel
        step.attend(query, cache, cache)

    return attend
