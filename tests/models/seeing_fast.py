"""The training loop of `seeing`: the same arithmetic as transformers', in a fraction of the time.

All pictures of a batch have one size, so frames attend together and positions are tables. bfloat16
products, float32 weights. While it learns, the tower must also name from its own tokens what
stands where (`Helper`): without that the model finds out only late that pictures matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.models.seeing_data import COLOURS, DIGITS, RELATIONS, SHAPES, SIDE, Lesson, relation_of

NONE = -100


@dataclass(frozen=True)
class Batch:
    """`pixels` [pictures, patches, values]; `ids` and `labels` [rows, length];
    `positions` [3, rows, length]; `visual` the flat places of the pictures' tokens;
    `seen` [kinds of question, pictures, tokens], what the tower must name; `hints` [rows, length],
    of which `RELATIONS` each token of a question asks."""

    pixels: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor
    hints: torch.Tensor
    positions: torch.Tensor
    visual: torch.Tensor
    seen: torch.Tensor | None = None


class Helper(nn.Module):
    """Reads off each token of the tower what has its middle there, how many things there are, of
    two things where this one is to the other and what that one is, and the picture's digit. It is
    thrown away later."""

    SIZES = (
        len(COLOURS), len(SHAPES) + len(DIGITS), 6, len(RELATIONS), len(COLOURS), len(SHAPES),
        len(DIGITS),
    )  # fmt: skip

    def __init__(self, width: int) -> None:
        super().__init__()
        self.there = nn.Linear(width, 2)
        self.what = nn.Linear(width, sum(self.SIZES))

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return the losses of what is there, and of each of `SIZES`."""
        tokens, seen = tokens.float().flatten(0, 1), seen.flatten(1)
        there = functional.cross_entropy(self.there(tokens), (seen[0] != NONE).long())
        answers = self.what(tokens).split(self.SIZES, dim=-1)
        losses = [functional.cross_entropy(a, s, ignore_index=NONE, reduction="sum") / (
                  (s != NONE).sum() + 1) for a, s in zip(answers, seen, strict=True)]  # fmt: skip
        return torch.stack([there, *losses])

    @torch.no_grad()
    def shares_right(self, tokens: torch.Tensor, seen: torch.Tensor) -> list[float]:
        """Return of each of `SIZES` that was asked how much is right."""
        answers = self.what(tokens.float()).split(self.SIZES, dim=-1)
        return [float((a.argmax(-1) == s)[s != NONE].float().mean())
                for a, s in zip(answers, seen, strict=True) if (s != NONE).any()]  # fmt: skip


def what_is_seen(lesson: Lesson, side: int) -> torch.Tensor:
    """Return [kinds of question, side²] classes, `NONE` where nothing is asked."""
    seen = torch.full((len(Helper.SIZES), side, side), NONE)
    seen[2] = len(lesson.things)
    if lesson.topic == "digit":
        seen[6] = DIGITS.index(lesson.things[0].shape)
    for thing in lesson.things:
        column, row = (int(value / SIDE * side) for value in thing.middle)
        seen[0, row, column] = _COLOURS.index(thing.colour)
        seen[1, row, column] = (*SHAPES, *DIGITS).index(thing.shape)
        if lesson.topic == "relation":
            (other,) = (x for x in lesson.things if x is not thing)
            seen[3, row, column] = RELATIONS.index(relation_of(thing, other))
            seen[4, row, column] = _COLOURS.index(other.colour)
            seen[5, row, column] = SHAPES.index(other.shape)
    return seen.flatten(1)


_COLOURS = list(COLOURS)


class Fast:
    """A Qwen3-VL's forward pass for batches whose pictures are all squares of `side` patches."""

    def __init__(self, model: Any, side: int) -> None:
        from transformers.models.qwen3_vl import modeling_qwen3_vl as upstream

        self.visual, self.text = model.model.visual, model.model.language_model
        self.side, self.head = side, model.lm_head
        grid = torch.tensor([[1, side, side]])
        self.place, self.weight = upstream.get_vision_interpolation_indices_and_weights(
            grid, num_grid_per_side=self.visual.num_grid_per_side,
            mode=self.visual.interpolation_mode,
            align_corners=self.visual.interpolation_align_corners, spatial_merge_size=2,
        )  # fmt: skip
        places = upstream.get_vision_position_ids(grid, 2)
        self.rotary = self.visual.rotary_pos_emb(self.weight, places)

    def tower(self, pixels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the pictures' tokens [pictures, tokens, width], and those for DeepStack."""
        tower, weight = self.visual, self.visual.patch_embed.proj.weight
        still = pixels.shape[-1] != weight[0].numel()
        weight = weight.sum(2).flatten(1) if still else weight.flatten(1)
        values = (pixels / 127.5 - 1).to(weight.dtype)
        hidden = functional.linear(values, weight, tower.patch_embed.proj.bias)
        places = (tower.pos_embed(self.place) * self.weight[:, :, None]).sum(1)
        hidden, taps = hidden + places.to(hidden.dtype), []
        for index, block in enumerate(tower.blocks):
            hidden = hidden + self._attend(block.attn, block.norm1(hidden))
            hidden = hidden + block.mlp(block.norm2(hidden))
            if index in tower.deepstack_visual_indexes:
                taps.append(tower.deepstack_merger_list[len(taps)](hidden))
        return tower.merger(hidden).unflatten(0, (len(pixels), -1)), taps

    def _attend(self, attention: Any, hidden: torch.Tensor) -> torch.Tensor:
        heads = attention.qkv(hidden).unflatten(-1, (3, attention.num_heads, -1))
        query, key, value = (x.transpose(1, 2) for x in heads.unbind(2))
        query, key = (_turned(x, *self.rotary) for x in (query, key))
        scores = query @ key.transpose(2, 3) * attention.scaling
        seen = scores.softmax(-1, dtype=query.dtype) @ value
        out: torch.Tensor = attention.proj(seen.transpose(1, 2).flatten(2))
        return out

    def loss(
        self, batch: Batch, helper: Helper, reader: nn.Linear
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the answers' tokens, with the reader's of the hints, and the helper's.

        reader: from the width to `RELATIONS`, thrown away later: without it the model finds out
            very late that a question names the thing to look for.
        """
        tokens, taps = self.tower(batch.pixels) if len(batch.pixels) else (None, [])
        hidden, wanted = self._read(batch, tokens, taps), batch.labels != NONE
        loss = functional.cross_entropy(self.head(hidden[wanted]).float(), batch.labels[wanted])
        if (hinted := batch.hints != NONE).any():
            found = reader(hidden[hinted].float()).float()
            loss = loss + functional.cross_entropy(found, batch.hints[hinted])
        if tokens is None or batch.seen is None:
            return loss, loss.new_zeros(1 + len(Helper.SIZES))
        return loss, helper(tokens, batch.seen)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return [rows, length, vocabulary]."""
        out: torch.Tensor = self.head(self._read(batch, *self.tower(batch.pixels)))
        return out

    def _read(
        self, batch: Batch, tokens: torch.Tensor | None, taps: list[torch.Tensor]
    ) -> torch.Tensor:
        hidden = self.text.embed_tokens(batch.ids)
        shape = hidden.shape
        if tokens is not None:
            rows = tokens.flatten(0, 1).to(hidden.dtype)
            hidden = hidden.flatten(0, 1).index_copy(0, batch.visual, rows).view(shape)
        rotary = self.text.rotary_emb(hidden, batch.positions)
        mask = torch.full((shape[1], shape[1]), -torch.inf, dtype=hidden.dtype).triu(1)[None, None]
        for index, layer in enumerate(self.text.layers):
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary)
            if index < len(taps):
                rows = taps[index].to(hidden.dtype)
                hidden = hidden.flatten(0, 1).index_add(0, batch.visual, rows).view(shape)
        out: torch.Tensor = self.text.norm(hidden)
        return out


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    other = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.to(x.dtype) + other * sin.to(x.dtype)
