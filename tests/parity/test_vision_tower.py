"""The vision tower gives what transformers' gives, for every published layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qwen_engine.loader import load_weights
from qwen_engine.models.vision import PREFIX, Pixels, VisionTower
from qwen_engine.models.vision_pace import LEAST_ROWS, Pace
from qwen_engine.planning.vision import parse_vision_config, vision_parameter_shapes
from tests.models.tiny_vision import VISION_SHAPES, build_tiny_vision

# Frames, rows and columns; some share a tile, one is cut into several.
GRIDS = [(1, 8, 12), (1, 2, 2), (3, 6, 4), (1, 6, 4), (1, 12, 8), (1, 30, 36)]


@pytest.fixture(params=VISION_SHAPES)
def folder(request: pytest.FixtureRequest) -> Path:
    return build_tiny_vision(request.param)


def load_tower(folder: Path, dtype: torch.dtype = torch.float32) -> VisionTower:
    vision = parse_vision_config(json.loads((folder / "config.json").read_text()))
    assert vision is not None
    tower = VisionTower.allocate(
        vision, mean=[0.5] * 3, std=[0.5] * 3, dtype=dtype, device=torch.device("cpu")
    )
    load_weights(
        folder, tower.checkpoint_tensors(), is_redundant=lambda name: not name.startswith(PREFIX)
    )
    return tower


def make_items() -> list[Pixels]:
    generator = torch.Generator().manual_seed(7)
    items = []
    for grid in GRIDS:
        frames = 2 if grid[0] > 1 else 1
        shape = (grid[0] * grid[1] * grid[2], 3, frames, 256)
        values = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        items.append(Pixels(values, grid))
    return items


def theirs(folder: Path, items: list[Pixels]) -> torch.Tensor:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    pixels = torch.cat(
        [((i.values / 255 - 0.5) / 0.5).expand(-1, -1, 2, -1).flatten(1) for i in items]
    )
    out = model.model.visual(pixels, grid_thw=torch.tensor([i.grid for i in items]))
    return torch.cat([out.pooler_output, *out.deepstack_features], dim=1)


@torch.inference_mode()
@pytest.mark.parametrize("is_tuned", [False, True], ids=["torch", "tuned"])
def test_pictures_and_videos_of_all_sizes_encode_as_in_transformers(
    folder: Path, is_tuned: bool
) -> None:
    items, tower = make_items(), load_tower(folder)
    if is_tuned:
        tower.tune()
    ours = tower(items)
    assert ours.shape == (sum(len(i.values) for i in items) // 4, 64 * 4)
    assert (ours - theirs(folder, items)).abs().max() < 1e-4


@torch.inference_mode()
def test_in_bfloat16_what_was_chosen_by_measurement_rounds_as_torch_does(folder: Path) -> None:
    items, exact = make_items(), load_tower(folder)(make_items())
    plain = load_tower(folder, torch.bfloat16)
    before = (plain(items).float() - exact).abs().mean()
    plain.tune()
    after = (plain(items).float() - exact).abs().mean()
    assert 0 < after < 1.25 * before


@torch.inference_mode()
def test_in_turns_too_short_for_a_tile_the_same_is_encoded(folder: Path) -> None:
    tower, items, pace = load_tower(folder), make_items(), Pace()
    tower.tune()  # as the engine does
    run, num_turns = tower.run(items, pace), 0
    while True:
        pace.start(0.0)  # the least piece each time
        num_turns += 1
        try:
            next(run)
        except StopIteration as end:
            paced = end.value
            break
    num_patches = sum(len(item.values) for item in items)
    assert num_turns > 2 * len(tower.blocks) * num_patches / LEAST_ROWS
    torch.testing.assert_close(paced, tower(items), atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_an_item_encodes_the_same_alone_and_among_others(folder: Path) -> None:
    tower, items = load_tower(folder), make_items()
    together = tower(items)
    start = 0
    for item in items:
        end = start + tower.num_tokens(item.grid)
        torch.testing.assert_close(tower([item]), together[start:end], atol=1e-5, rtol=1e-4)
        start = end


def test_the_planner_counts_exactly_the_towers_parameters(folder: Path) -> None:
    tensors = load_tower(folder).checkpoint_tensors()
    vision = parse_vision_config(json.loads((folder / "config.json").read_text()))
    assert vision is not None
    assert dict(vision_parameter_shapes(vision)) == {n: tuple(t.shape) for n, t in tensors.items()}
