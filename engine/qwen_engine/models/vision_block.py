"""One block of the vision tower, computed tile by tile; see `vision`. Knows no pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from qwen_engine.kernels.vision import VisionLibrary
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.linear import Linear
from qwen_engine.layers.rotary import rotate
from qwen_engine.models.vision_pace import Pace
from qwen_engine.models.vision_tiles import Tile
from qwen_engine.planning.vision import VisionShape

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Packed:
    """The patches of all items, one after the other."""

    hidden: torch.Tensor  # [num_patches, hidden], changed in place block by block
    cos: torch.Tensor  # float32 [num_patches, head_dim]
    sin: torch.Tensor
    tiles: list[Tile]


class LayerNorm(nn.Module):
    """Layer normalisation whose memory comes later."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size), requires_grad=False)
        self.library: VisionLibrary | None = None  # on a CPU

    def forward(self, hidden: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise [rows, size], to which `delta` is added in place first."""
        if self.library is not None:
            return self.library.norm(hidden, self.weight, self.bias, NORM_EPS, delta)
        if delta is not None:
            hidden += delta
        return functional.layer_norm(hidden, self.weight.shape, self.weight, self.bias, NORM_EPS)

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield f"{prefix}weight", self.weight
        yield f"{prefix}bias", self.bias


class VisionBlock(nn.Module):
    """Pre-norm attention within each frame, and a feed-forward with tanh-GELU."""

    def __init__(self, vision: VisionShape) -> None:
        super().__init__()
        hidden, inner = vision.hidden_size, vision.intermediate_size
        self.attention_norm = LayerNorm(hidden)
        self.qkv = Linear(hidden, {"qkv": 3 * hidden}, bias=True)
        self.proj = Linear(hidden, {"proj": hidden}, bias=True)
        self.feed_forward_norm = LayerNorm(hidden)
        self.up = Linear(hidden, {"linear_fc1": inner}, bias=True)
        self.down = Linear(inner, {"linear_fc2": hidden}, bias=True)
        self.num_heads = vision.num_heads
        self.library: VisionLibrary | None = None  # on a CPU

    def run(self, packed: Packed, pace: Pace) -> Iterator[None]:
        """Change `packed.hidden`; give the caller a turn after each piece of a tile."""
        hidden = packed.hidden
        # What a head reads lies in a row.
        heads = hidden.new_empty(3, self.num_heads, len(hidden), hidden.shape[1] // self.num_heads)
        size, inner = hidden.shape[1], self.up.weight.shape[0]
        for tile in pace.pieces("keys", packed.tiles, lambda _: 6 * size**2):  # before any query
            self._place(self.qkv(self.attention_norm(hidden[tile.rows])), packed, tile.rows, heads)
            yield
        products = 2 * size * (size + 2 * inner)
        for tile in pace.pieces("queries", packed.tiles, lambda x: products + 4 * size * x.frame):
            part = hidden[tile.rows]
            attended = self.proj(self._attend(heads, tile))
            part += self.down(self._gelu(self.up(self.feed_forward_norm(part, attended))))
            yield

    def _place(self, qkv: torch.Tensor, packed: Packed, rows: slice, heads: torch.Tensor) -> None:
        """Turn queries and keys and put them, and the values, into `heads`."""
        turns = packed.cos[rows], packed.sin[rows]
        if self.library is not None:
            self.library.turn(qkv, turns, heads, rows.start)
            return
        parts = qkv.view(len(qkv), 3, *heads.shape[1::2]).permute(1, 2, 0, 3)
        # In float32 as upstream: a patch far to the right turns by many radians.
        heads[:2, :, rows] = rotate(parts[:2].float(), *turns)
        heads[2, :, rows] = parts[2]

    def _attend(self, heads: torch.Tensor, tile: Tile) -> torch.Tensor:
        """Return what the tile's patches see in their frames: [rows, hidden]."""
        if self.library is not None:
            return self.library.attend(heads, tile.rows, tile.seen, tile.num_frames)
        in_frames = self.num_heads, tile.num_frames, -1, heads.shape[-1]
        query, key, value = (
            heads[index, :, rows].view(*in_frames).transpose(0, 1)
            for index, rows in enumerate((tile.rows, tile.seen, tile.seen))
        )
        seen = functional.scaled_dot_product_attention(query, key, value)
        return seen.transpose(1, 2).flatten(2).flatten(0, 1)

    def _gelu(self, inner: torch.Tensor) -> torch.Tensor:
        if self.library is not None:
            return self.library.gelu(inner)
        return functional.gelu(inner, approximate="tanh")

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.attention_norm.checkpoint_tensors(f"{prefix}norm1.")
        yield from self.qkv.checkpoint_tensors(f"{prefix}attn.")
        yield from self.proj.checkpoint_tensors(f"{prefix}attn.")
        yield from self.feed_forward_norm.checkpoint_tensors(f"{prefix}norm2.")
        yield from self.up.checkpoint_tensors(f"{prefix}mlp.")
        yield from self.down.checkpoint_tensors(f"{prefix}mlp.")
