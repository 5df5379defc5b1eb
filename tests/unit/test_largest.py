"""Greedy tokens found in C++ are those that torch finds."""

from __future__ import annotations

import math

import pytest
import torch

from qwen_engine.kernels.largest import Largest
from qwen_engine.kernels.library import NativeLibrary

FOUND = NativeLibrary.find()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="the C++ was not built, or this processor has no AVX2"
)


def logits(rows: int, size: int) -> torch.Tensor:
    """Return rows with many ties: a bfloat16 has 8 bits."""
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(size)).bfloat16()


@pytest.fixture
def largest() -> Largest:
    assert FOUND is not None
    return Largest(FOUND)


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("size", [1, 31, 32, 1000, 1024, 1025, 5003, 151_936])
def test_the_first_of_the_largest_is_found(largest: Largest, rows: int, size: int) -> None:
    x = logits(rows, size)
    assert torch.equal(largest(x), x.max(dim=-1).indices)


@pytest.mark.parametrize("place", [0, 17, 1023, 1024, 2047, 2049, 2056])
def test_it_is_found_wherever_it_is(largest: Largest, place: int) -> None:
    x = logits(2, 2057)
    x[1, place] = 100.0
    assert largest(x).tolist()[1] == place
    x[:] = -math.inf
    x[0, place] = -3.0e38
    assert largest(x).tolist() == [place, 0]


@pytest.mark.parametrize("place", [5, 1500, 2056])
def test_nan_comes_before_all_others_as_in_torch(largest: Largest, place: int) -> None:
    x = logits(2, 2057)
    x[0, 7] = math.inf
    x[0, place] = x[0, 2056] = math.nan
    assert torch.equal(largest(x), x.max(dim=-1).indices)


def test_rows_need_not_lie_side_by_side(largest: Largest) -> None:
    x = logits(6, 300)[::2, 7:]
    assert torch.equal(largest(x), x.max(dim=-1).indices)
