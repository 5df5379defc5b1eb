"""Patches to embeddings: our vision tower beside transformers', the same weights, in one process.

The 2B's shape with random weights, of its 24 blocks as many as asked for, and one tap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from qwen_engine.models.vision import Pixels, VisionTower
from qwen_engine.planning.vision import parse_vision_config
from tests.bench.vision.turns import Row

PREFIX = "model.visual."
SHAPE: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
    "num_position_embeddings": 2304,
}  # fmt: skip
# Rows and columns of patches: 448² and 1920×1080 as it is resized.
WORK = {"1 × 448²": [(28, 28)], "4 × 448²": [(28, 28)] * 4, "16 × 448²": [(28, 28)] * 16,
        "1920×1080": [(68, 120)]}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def tower_rows(wanted: Callable[[str], bool], blocks: int) -> Iterator[Row]:
    """Yield the rows whose names are wanted, one dtype's towers after the other's."""
    for called, dtype in DTYPES.items():
        names = {f"tower {called}: {work}": grids for work, grids in WORK.items()}
        chosen = {name: grids for name, grids in names.items() if wanted(name)}
        if not chosen:
            continue
        ours, theirs = _towers(dtype, blocks)
        for index, (name, grids) in enumerate(chosen.items()):
            row = _row(name, [_noise(*grid) for grid in grids], ours, theirs)
            yield replace(row, is_warm=index > 0)


def _towers(dtype: torch.dtype, blocks: int) -> tuple[VisionTower, Any]:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    shape = {**SHAPE, "depth": blocks, "deepstack_visual_indexes": [blocks // 2]}
    config = Qwen3VLVisionConfig(**shape)
    upstream = Qwen3VLVisionModel._from_config(config, attn_implementation="sdpa", dtype=dtype)
    vision = parse_vision_config(
        {"vision_config": shape, "text_config": {"hidden_size": 2048, "num_hidden_layers": 28}}
    )
    assert vision is not None
    tower = VisionTower.allocate(
        vision, mean=[0.5] * 3, std=[0.5] * 3, dtype=dtype, device=torch.device("cpu")
    )
    state = upstream.state_dict()
    for name, tensor in tower.checkpoint_tensors().items():
        tensor.data.copy_(state[name.removeprefix(PREFIX)])
    tower.tune()
    return tower, upstream.eval()


def _row(name: str, items: list[Pixels], tower: VisionTower, upstream: Any) -> Row:
    values = torch.cat([item.values.expand(-1, -1, 2, -1).flatten(1) for item in items])
    pixels, grids = values / 127.5 - 1, torch.tensor([item.grid for item in items])

    def theirs() -> object:
        return upstream(pixels, grid_thw=grids)

    return Row(name, {"ours": lambda: tower(items), "transformers": theirs})


def _noise(rows: int, columns: int) -> Pixels:
    values = torch.randint(0, 256, (rows * columns, 3, 1, 256), dtype=torch.uint8)
    return Pixels(values, (1, rows, columns))
