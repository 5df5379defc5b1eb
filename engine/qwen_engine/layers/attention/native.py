"""Paged attention in C++ on a CPU: bfloat16, the cache read where it lies, nothing gathered."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.attention.interface import AttentionMetadata


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
