"""What an attention backend is given, and what it must do.

A layer's cache is two tensors [num_blocks, block_size, num_kv_heads, head_dim], keys and values;
in 8 bits they are as `eight_bit` says. Slot = block × block_size + offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from qwen_engine.layers.attention import eight_bit


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Which queries of a step see which blocks; on the host, the same for every layer.

    Queries are packed: sequence i has the rows query_starts[i] … query_starts[i + 1]. They are
    the last of its `context_lens[i]` tokens, and each sees all tokens up to itself.
    """

    query_starts: np.ndarray  # [num_seqs + 1]
    context_lens: np.ndarray  # [num_seqs], tokens, this step's included
    block_tables: np.ndarray  # [num_seqs, most blocks], padded with 0
    block_size: int

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.query_starts)


class AttentionStep(Protocol):
    """One step's attention, prepared once and used by every layer."""

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return softmax(query·keysᵀ/√head_dim)·values per query row, causally.

        query: [num_tokens, num_heads, head_dim]; keys, values: a layer's cache, in which this
        step's own tokens are already stored. Returns the shape of query.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention; holds no state of any step."""

    def prepare(
        self, metadata: AttentionMetadata, *, dtype: torch.dtype, device: torch.device
    ) -> AttentionStep:
        """Do what need be done only once per step."""
        ...


def store_kv(
    cache: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> None:
    """Write key and value [num_tokens, num_kv_heads, head_dim] to their slots [num_tokens]."""
    for tensor, new in zip(cache, (key, value), strict=True):
        if eight_bit.is_eight_bit(tensor):
            eight_bit.store(tensor, slots, new)
        else:
            tensor.flatten(0, 1).index_copy_(0, slots, new)
