"""Positions of prompts with pictures are those of transformers' get_rope_index."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from qwen_engine.planning.vision import VisionTokens
from qwen_engine.vision.media import Media
from qwen_engine.vision.positions import PromptPositions, compute_positions
from qwen_engine.vision.prompt import MediaPrompt, expand
from tests.models.tiny_vision import build_tiny_vision

TOKENS = VisionTokens(image=900, video=901, start=902, end=903)
IMAGE, FRAME = [902, 900, 903], [902, 901, 903]
Grid = tuple[int, int, int]

CASES: dict[str, tuple[list[int], list[Grid]]] = {
    "text": ([5] * 9, []),
    "one image": ([1, *IMAGE, 2, 3], [(1, 8, 12)]),
    "image first": ([*IMAGE, 2], [(1, 2, 2)]),
    "four of different sizes": (
        [1, *IMAGE, *IMAGE, 2, *IMAGE, 3, *IMAGE], [(1, 4, 4), (1, 2, 16), (1, 20, 2), (1, 6, 8)],
    ),
    "in the middle of a long text": ([7] * 300 + IMAGE + [8] * 200, [(1, 30, 40)]),
    "video": ([1, 9, *FRAME, 9, 9, *FRAME, 9, *FRAME, 2], [(3, 4, 6)]),
    "video and images": (
        [1, *IMAGE, 9, *FRAME, 9, *FRAME, 3, *IMAGE], [(1, 4, 6), (2, 6, 4), (1, 2, 2)],
    ),
}  # fmt: skip


@cache
def upstream() -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(build_tiny_vision("2b")).model


def make_prompt(ids: list[int], grids: list[Grid]) -> MediaPrompt:
    media = [
        Media(
            kind="video" if grid[0] > 1 else "image", key=b"", grid=grid, merge_size=2,
            patches=memoryview(b""), timestamps=(0.0,) * grid[0],
        )
        for grid in grids
    ]  # fmt: skip
    return expand(ids, media, TOKENS)


@pytest.mark.parametrize("name", CASES)
def test_positions_are_those_of_transformers(name: str) -> None:
    ids, grids = CASES[name]
    prompt = make_prompt(ids, grids)
    token_ids = torch.tensor([prompt.token_ids])
    images = [grid for grid in grids if grid[0] == 1]
    videos = [grid for grid in grids if grid[0] > 1]
    expected, delta = upstream().get_rope_index(
        token_ids,
        mm_token_type_ids=(token_ids == 900).int() + 2 * (token_ids == 901).int(),
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
    )
    positions, our_delta = compute_positions(len(prompt.token_ids), prompt.spans)
    assert positions.tolist() == expected[:, 0].tolist()
    assert our_delta == delta.item()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_cut_into_steps_they_are_the_same_and_go_on_after_the_prompt(size: int) -> None:
    prompt = make_prompt(*CASES["video and images"])
    num_tokens = len(prompt.token_ids)
    positions = PromptPositions(num_tokens, prompt.spans)
    whole, delta = compute_positions(num_tokens, prompt.spans)
    total = num_tokens + 20
    parts = [positions.cut(start, min(size, total - start)) for start in range(0, total, size)]
    joined = np.concatenate(parts, axis=1)
    assert joined[:, :num_tokens].tolist() == whole.tolist()
    assert joined[0, num_tokens:].tolist() == list(range(num_tokens + delta, total + delta))
    assert (joined[:, num_tokens:] == joined[0, num_tokens:]).all()
