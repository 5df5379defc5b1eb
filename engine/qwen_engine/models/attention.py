"""The attention of a decoder layer, and what a step hands to every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.attention import AttentionStep, store_kv
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.linear import Linear
from qwen_engine.layers.norm import RMSNorm
from qwen_engine.layers.rotary import rotate
from qwen_engine.model_config import ModelConfig

KVCache = tuple[torch.Tensor, torch.Tensor]  # see layers.attention.interface


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What every layer of one step needs besides the hidden states."""

    cos: torch.Tensor  # [num_tokens, 1, head_dim]
    sin: torch.Tensor
    slots: torch.Tensor  # [num_tokens], where K and V go
    attention: AttentionStep


class Attention(nn.Module):
    """Grouped-query attention over the paged cache."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
        self.qkv = Linear(config.hidden_size, sizes, bias=config.qkv_bias)
        self.o_proj = Linear(config.q_size, {"o_proj": config.hidden_size}, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.num_heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self.head_dim = config.head_dim
        self.library: NativeLibrary | None = None  # for bfloat16 on a CPU

    def forward(
        self, hidden: torch.Tensor, cache: KVCache, context: ForwardContext
    ) -> torch.Tensor:
        heads: torch.Tensor = self.qkv(hidden).unflatten(-1, (-1, self.head_dim))
        if self.library is None:
            query = self._store_and_turn(heads, cache, context)
        else:
            query = self.library.heads(
                heads,
                cache,
                context.slots,
                kv_heads=self.num_heads[1],
                norms=self._norms(),
                rotary=(context.cos, context.sin),
            )
        attended = context.attention.attend(query, *cache)
        projected: torch.Tensor = self.o_proj(attended.flatten(1))
        return projected

    def _store_and_turn(
        self, heads: torch.Tensor, cache: KVCache, context: ForwardContext
    ) -> torch.Tensor:
        """Normalise and rotate, store keys and values, return the queries."""
        query, key, value = torch.split(heads, self.num_heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query = rotate(query, context.cos, context.sin)
        key = rotate(key, context.cos, context.sin)
        store_kv(cache, context.slots, key, value)
        return query

    def _norms(self) -> tuple[torch.Tensor, torch.Tensor, float] | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm.weight, self.k_norm.weight, self.q_norm.eps

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.qkv.checkpoint_tensors(prefix)
        yield from self.o_proj.checkpoint_tensors(prefix)
        if self.q_norm is not None and self.k_norm is not None:
            yield f"{prefix}q_norm.weight", self.q_norm.weight
            yield f"{prefix}k_norm.weight", self.k_norm.weight
