"""The oracle: attention written as its formula, one sequence and one query at a time.

Slow on purpose; tests compare the other backends with it. Computes in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qwen_engine.layers.attention import eight_bit
from qwen_engine.layers.attention.interface import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """See `AttentionStep`."""

    metadata: AttentionMetadata

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys, values = self._plain(keys, query), self._plain(values, query)
        output = torch.empty_like(query)
        starts = self.metadata.query_starts.tolist()
        for index, context_len in enumerate(self.metadata.context_lens.tolist()):
            rows = range(starts[index], starts[index + 1])
            for row in rows:
                num_seen = context_len - (rows.stop - row) + 1
                output[row] = self._attend_one(query[row], keys, values, (index, num_seen))
        return output

    def _plain(self, part: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Return keys or values as [num_blocks, block_size, num_kv_heads, head_dim]."""
        if not eight_bit.is_eight_bit(part):
            return part
        head_dim = query.shape[-1]
        num_heads = eight_bit.num_kv_heads(part, self.metadata.block_size, head_dim)
        return eight_bit.widen(*eight_bit.split(part, num_heads, head_dim), torch.float32)

    def _attend_one(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, where: tuple[int, int]
    ) -> torch.Tensor:
        index, num_seen = where
        size = self.metadata.block_size
        table = self.metadata.block_tables[index].tolist()
        slots = [table[pos // size] * size + pos % size for pos in range(num_seen)]
        group = query.shape[0] // keys.shape[2]  # query heads that share a KV head
        seen = torch.tensor(slots, device=query.device)
        key = keys.flatten(0, 1)[seen].float().repeat_interleave(group, dim=1)
        value = values.flatten(0, 1)[seen].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query.float(), key) / query.shape[-1] ** 0.5
        return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), value).to(query.dtype)


class ReferenceBackend:
    """See `AttentionBackend`."""

    def prepare(
        self, metadata: AttentionMetadata, *, dtype: torch.dtype, device: torch.device
    ) -> ReferenceStep:
        return ReferenceStep(metadata)
