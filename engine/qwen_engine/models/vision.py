"""The vision tower of Qwen3-VL: patches of pictures in, embeddings of tokens out.

Built and run by `worker`, which runs it once per picture and keeps what it gives. Knows patches
and grids; neither files nor prompts. Follows transformers 5.24 models/qwen3_vl step by step.

A *frame* is what attends to itself: a picture, or two consecutive pictures of a video, which
share each patch. Patches come in the order of the merge: the four that become one token lie side
by side.

The work is done in *tiles* of a thousand patches or so, so that what one needs besides weights
stays in the processor's caches. A large picture takes seconds: whoever runs the tower may stop
after each piece to let others have their turn, and say by a `Pace` how large pieces are.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from qwen_engine.host_memory import HostMemory
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.vision import VisionLibrary
from qwen_engine.layers.gemm import MeasuredGemm, choose_gemm
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.linear import Linear
from qwen_engine.models.allocation import give_memory
from qwen_engine.models.vision_block import LayerNorm, Packed, VisionBlock
from qwen_engine.models.vision_pace import Pace
from qwen_engine.models.vision_tiles import cut_tiles
from qwen_engine.planning.vision import VisionShape

PREFIX = "model.visual."


@dataclass(frozen=True, slots=True)
class Pixels:
    """One picture or video, cut into patches.

    Attributes:
        values: uint8 [num_patches, channels, frames, patch_size²]; frames is 1 for a picture,
            which the tower sees twice.
        grid: frames, rows and columns of patches.
    """

    values: torch.Tensor
    grid: tuple[int, int, int]


class Merger(nn.Module):
    """Four neighbouring patches become one token of the text model; exact GELU."""

    def __init__(self, vision: VisionShape, *, is_tap: bool) -> None:
        super().__init__()
        merged = vision.merged_size
        # The main merger normalises each patch, those of taps the patches side by side.
        self.norm = LayerNorm(merged if is_tap else vision.hidden_size)
        self.first = Linear(merged, {"linear_fc1": merged}, bias=True)
        self.second = Linear(merged, {"linear_fc2": vision.out_hidden_size}, bias=True)
        self.merged_size, self.is_tap = merged, is_tap

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [num_patches, hidden] to [num_tokens, out_hidden]."""
        if self.is_tap:
            hidden = hidden.view(-1, self.merged_size)
        normed = self.norm(hidden).view(-1, self.merged_size)
        merged: torch.Tensor = self.second(functional.gelu(self.first(normed)))
        return merged

    def checkpoint_tensors(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.norm.checkpoint_tensors(f"{prefix}norm.")
        yield from self.first.checkpoint_tensors(prefix)
        yield from self.second.checkpoint_tensors(prefix)


class VisionTower(nn.Module):
    """Pictures in, [num_tokens, (1 + taps) × out_hidden] out: the embedding, then each tap's."""

    def __init__(self, vision: VisionShape) -> None:
        super().__init__()
        self.vision = vision
        self.patch = Linear(vision.patch_values, {"proj": vision.hidden_size}, bias=True)
        grid = torch.empty(vision.grid_side**2, vision.hidden_size)
        self.positions = nn.Parameter(grid, requires_grad=False)
        self.blocks = nn.ModuleList(VisionBlock(vision) for _ in range(vision.depth))
        self.merger = Merger(vision, is_tap=False)
        self.tap_mergers = nn.ModuleList(Merger(vision, is_tap=True) for _ in vision.taps)
        self._scale: torch.Tensor | None = None
        self._offset: torch.Tensor | None = None

    @classmethod
    def allocate(
        cls,
        vision: VisionShape,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype,
        device: torch.device,
        memory: HostMemory | None = None,
    ) -> Self:
        """Return a tower with its memory, not yet filled; mean and std are those of the pixels.

        memory: a CPU's, of which the parameters take theirs.
        """
        with torch.device("meta"):
            tower = cls(vision)
        give_memory(tower, dtype=dtype, device=device, memory=memory)
        means, stds = (torch.tensor(x, device=device).view(1, -1, 1, 1) for x in (mean, std))
        tower._scale, tower._offset = 1 / (255 * stds), -means / stds
        return tower

    @torch.inference_mode()
    def tune(self, gemm: MeasuredGemm | None = None) -> None:
        """On a CPU, choose how it is computed from now on; once the weights are in place.

        gemm: how the text model's products are, if in the same dtype; else they are measured here.
        """
        if self.positions.device.type != "cpu":
            return
        found = NativeLibrary.find()
        library = VisionLibrary(found) if found is not None else None
        if library is not None and not library.runs(self.positions.dtype, self.vision.head_dim):
            library = None
        ups = [block.up.weight for block in self.blocks if isinstance(block, VisionBlock)]
        gemm = gemm or choose_gemm(ups, found)
        for module in self.modules():
            if isinstance(module, Linear) and gemm is not None:
                module.use(gemm)
            if isinstance(module, LayerNorm | VisionBlock):
                module.library = library

    def forward(self, items: Sequence[Pixels]) -> torch.Tensor:
        """Encode the items, one after the other in the result."""
        run = self.run(items)
        while True:
            try:
                next(run)
            except StopIteration as end:
                encoded: torch.Tensor = end.value
                return encoded

    def run(
        self, items: Sequence[Pixels], pace: Pace | None = None
    ) -> Generator[None, None, torch.Tensor]:
        """Encode the items in turns of a piece each; what is returned is what `forward` returns.

        pace: decides how large a piece is; without one it is a tile.
        """
        pace = pace or Pace()
        packed = yield from self._pack(items, pace)
        taps, size = self.vision.taps, self.vision.out_hidden_size
        num_tokens = len(packed.hidden) // self.vision.merge_size**2
        encoded = packed.hidden.new_empty(num_tokens, (1 + len(taps)) * size)
        parts = encoded.chunk(1 + len(taps), dim=1)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            yield from block.run(packed, pace)
            if index in taps:
                place = taps.index(index)
                yield from self._merge(
                    self.tap_mergers[place], packed.hidden, parts[1 + place], pace
                )
        yield from self._merge(self.merger, packed.hidden, parts[0], pace)
        return encoded

    def _merge(
        self, merger: nn.Module, hidden: torch.Tensor, encoded: torch.Tensor, pace: Pace
    ) -> Iterator[None]:
        patches = self.vision.merge_size**2  # of a token
        products = 2 * self.vision.merged_size * (self.vision.merged_size + encoded.shape[1])
        for rows in pace.row_pieces("merge", len(hidden), products / patches):
            tokens = slice(rows.start // patches, rows.stop // patches)
            encoded[tokens] = merger(hidden[rows])
            yield

    def num_tokens(self, grid: tuple[int, int, int]) -> int:
        """Return the tokens that an item of this many patches becomes."""
        frames, rows, columns = grid
        return frames * rows * columns // self.vision.merge_size**2

    def checkpoint_tensors(self) -> dict[str, Target]:
        """Return, by its name in the checkpoint, every tensor that must be written."""
        vision = self.vision
        patch = (vision.in_channels, vision.temporal_patch_size) + (vision.patch_size,) * 2
        tensors: dict[str, Target] = dict(self.patch.checkpoint_tensors(f"{PREFIX}patch_embed."))
        # A convolution's, whose stride is its kernel.
        tensors[f"{PREFIX}patch_embed.proj.weight"] = self.patch.weight.view(-1, *patch)
        tensors[f"{PREFIX}pos_embed.weight"] = self.positions
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            tensors.update(block.checkpoint_tensors(f"{PREFIX}blocks.{index}."))
        tensors.update(self.merger.checkpoint_tensors(f"{PREFIX}merger."))
        for index, merger in enumerate(self.tap_mergers):
            assert isinstance(merger, Merger)
            tensors.update(merger.checkpoint_tensors(f"{PREFIX}deepstack_merger_list.{index}."))
        return tensors

    def _embed(self, item: Pixels, hidden: torch.Tensor, pace: Pace) -> Iterator[None]:
        """Write the item's patches to `hidden`, [num_patches, hidden]."""
        assert self._scale is not None
        assert self._offset is not None
        count, rows, columns = item.grid
        hidden.view(count, rows * columns, -1).copy_(self._resampled_positions(rows, columns))
        yield
        for part in pace.row_pieces("patches", len(hidden), 2 * self.patch.weight.numel()):
            pixels = item.values[part].to(self._scale.device) * self._scale + self._offset
            pixels = pixels.expand(-1, -1, self.vision.temporal_patch_size, -1)
            hidden[part] += self.patch(pixels.flatten(1).to(hidden.dtype))
            yield

    def _resampled_positions(self, rows: int, columns: int) -> torch.Tensor:
        """Return the learned grid, resampled to that of a frame: float32 [num_patches, hidden]."""
        side = self.vision.grid_side
        grid = self.positions.float().T.reshape(1, -1, side, side)
        resampled = functional.interpolate(
            grid, size=(rows, columns), mode="bilinear", align_corners=True
        )
        return self._in_merge_order(resampled[0].permute(1, 2, 0))

    def _pack(self, items: Sequence[Pixels], pace: Pace) -> Generator[None, None, Packed]:
        sizes = [item.grid[0] * item.grid[1] * item.grid[2] for item in items]
        hidden = self.positions.new_empty(sum(sizes), self.vision.hidden_size)
        for item, size, end in zip(items, sizes, itertools.accumulate(sizes), strict=True):
            yield from self._embed(item, hidden[end - size : end], pace)
        angles = torch.cat([self._angles(*item.grid) for item in items]).to(hidden.device)
        grids = ((item.grid[0], item.grid[1] * item.grid[2]) for item in items)
        return Packed(hidden, angles.cos(), angles.sin(), list(cut_tiles(grids)))

    def _angles(self, count: int, rows: int, columns: int) -> torch.Tensor:
        """Return by how much each patch is turned: by its row, then by its column, twice."""
        quarter = torch.arange(0, self.vision.head_dim // 2, 2, dtype=torch.float32)
        inverse = 1.0 / self.vision.rope_theta ** (quarter / (self.vision.head_dim // 2))
        row = torch.arange(rows).view(-1, 1, 1).expand(rows, columns, 1)
        column = torch.arange(columns).view(1, -1, 1).expand(rows, columns, 1)
        half = self._in_merge_order(torch.cat((row * inverse, column * inverse), dim=-1))
        return torch.cat((half, half), dim=-1).repeat(count, 1)

    def _in_merge_order(self, x: torch.Tensor) -> torch.Tensor:
        """Reorder [rows, columns, size] to [num_patches, size], the merged ones side by side."""
        side = self.vision.merge_size
        rows, columns, size = x.shape
        blocks = x.reshape(rows // side, side, columns // side, side, size)
        return blocks.transpose(1, 2).reshape(-1, size)
