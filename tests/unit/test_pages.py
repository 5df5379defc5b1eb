"""Memory in huge pages is memory like any other."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

from qwen_engine.layers import pages

CPU = torch.device("cpu")
SHAPES = [(), (0, 4), (3, 5), (2**20 + 3,), (3, 2**19, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_zeros_are_zero_and_of_the_shape_that_was_asked_for(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = pages.zeros(shape, dtype=dtype, device=CPU)
    assert (tuple(made.shape), made.dtype) == (shape, dtype)
    assert made.is_contiguous()
    assert not made.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(shape: tuple[int, ...]) -> None:
    made = pages.empty(shape, dtype=torch.int32, device=CPU)
    expected = torch.arange(made.numel(), dtype=torch.int32).view(shape)
    made.copy_(expected)
    assert torch.equal(made, expected)


def test_large_tensors_begin_on_a_huge_page() -> None:
    made = pages.empty((2**22,), dtype=torch.int8, device=CPU)
    assert made.data_ptr() % pages.HUGE_PAGE == 0


def test_memory_lives_as_long_as_the_last_view_of_it() -> None:
    made = pages.zeros((4, 2**20), dtype=torch.int32, device=CPU)
    row = made[2].fill_(7)
    del made
    gc.collect()
    assert (row == 7).all()


def test_more_than_there_is_is_refused_with_torchs_own_error() -> None:
    with pytest.raises(RuntimeError):
        pages.zeros((2**50,), dtype=torch.float32, device=CPU)


def test_no_more_is_resident_than_was_asked_for() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    kept = [pages.zeros((2**21 + 2**19,), dtype=torch.int8, device=CPU) for _ in range(40)]
    asked = sum(tensor.nbytes for tensor in kept)
    assert resident() - before < asked + 8 * 2**20  # a page more for each would be 60 MiB
