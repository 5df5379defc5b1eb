"""The C++ part of the vision tower gives what torch gives, in float32 and in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.vision import VisionLibrary
from qwen_engine.layers.rotary import rotate
from qwen_engine.models.vision_tiles import Tile

NUM_HEADS = 3
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


FOUND = NativeLibrary.find()


@pytest.fixture(params=FOUND.kernels if FOUND else [None])
def library(request: pytest.FixtureRequest) -> VisionLibrary:
    """The library, attending with this kernel where that multiplies pairs."""
    found = NativeLibrary.find()
    if found is None:
        pytest.skip("the C++ library is not built, or not for this processor")
    found.attention = request.param
    return VisionLibrary(found)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest, library: VisionLibrary) -> torch.dtype:
    if not library.runs(request.param, 64):
        pytest.skip(f"this processor computes no {request.param} in C++")
    found: torch.dtype = request.param
    return found


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("size", [64, 72, 1152])
def test_the_norm_adds_first_and_normalises_then(
    library: VisionLibrary, dtype: torch.dtype, size: int
) -> None:
    x, delta = noise(7, size, dtype=dtype), 3 * noise(7, size, dtype=dtype, seed=1)
    weight, bias = noise(size, dtype=dtype, seed=2), noise(size, dtype=dtype, seed=3)
    added = x + delta
    expected = functional.layer_norm(added.float(), (size,), weight.float(), bias.float(), 1e-6)
    check(library.norm(x, weight, bias, 1e-6, delta), expected)
    assert torch.equal(x, added)
    check(library.norm(x, weight, bias, 1e-6), expected)
    assert torch.equal(x, added)


@pytest.mark.parametrize("count", [1, 17, 9000])
def test_gelu_is_the_one_by_tanh(library: VisionLibrary, dtype: torch.dtype, count: int) -> None:
    x = 5 * noise(count, dtype=dtype)
    x[0] = -100.0
    expected = functional.gelu(x.float(), approximate="tanh")
    check(library.gelu(x), expected)


# Two whole frames in a tile; a part of one, not at its start; fewer queries than a panel has.
TILES = [
    Tile(slice(8, 128), slice(8, 128), 2),
    Tile(slice(40, 340), slice(12, 460), 1),
    Tile(slice(0, 4), slice(0, 4), 1),
]


@pytest.mark.parametrize("size", [64, 72])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}")
def test_patches_attend_to_all_of_their_frame(
    library: VisionLibrary, dtype: torch.dtype, size: int, tile: Tile
) -> None:
    total = 464
    qkv = 1.5 * noise(total, 3 * NUM_HEADS * size, dtype=dtype)
    angles = noise(total, size // 2, seed=1).repeat(1, 2)
    turns = angles.cos(), angles.sin()
    heads = torch.full((3, NUM_HEADS, total, size), torch.nan, dtype=dtype)
    for rows in (slice(0, 100), slice(100, total)):
        part = turns[0][rows], turns[1][rows]
        library.turn(qkv[rows], part, heads, rows.start)
    found = library.attend(heads, tile.rows, tile.seen, tile.num_frames)

    parts = qkv.float().view(total, 3, NUM_HEADS, size).permute(1, 2, 0, 3)
    turned = rotate(parts[:2], *turns).to(dtype).float()
    query, key, value = (
        each[:, rows].view(NUM_HEADS, tile.num_frames, -1, size).transpose(0, 1)
        for each, rows in zip((*turned, parts[2]), (tile.rows, tile.seen, tile.seen), strict=True)
    )
    seen = functional.scaled_dot_product_attention(query, key, value)
    check(found, seen.transpose(1, 2).flatten(2).flatten(0, 1))
