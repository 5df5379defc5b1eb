"""Memory in huge pages is memory like any other."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch

from qwen_engine.host_memory import HUGE_PAGE, HostMemory, StartMemory, resident_bytes
from qwen_engine.layers import pages

CPU = torch.device("cpu")
SHAPES = [(), (0, 4), (3, 5), (2**20 + 3,), (3, 2**19, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("is_reserved", [True, False])
def test_zeros_are_zero_and_of_the_shape_that_was_asked_for(
    shape: tuple[int, ...], dtype: torch.dtype, is_reserved: bool
) -> None:
    memory = HostMemory(3 * math.prod(shape) * dtype.itemsize) if is_reserved else None
    made = pages.zeros(3, shape, dtype=dtype, device=CPU, memory=memory)
    assert [(tuple(each.shape), each.dtype) for each in made] == [(shape, dtype)] * 3
    assert all(each.is_contiguous() and not each.any() for each in made)


def test_zeros_do_not_overlap() -> None:
    made = pages.zeros(4, (3, 5), dtype=torch.int16, device=CPU, memory=HostMemory(120))
    for place, each in enumerate(made):
        each.fill_(place)
    assert [each.unique().tolist() for each in made] == [[0], [1], [2], [3]]


def test_what_was_written_stays_when_the_rest_is_put_in_place() -> None:
    memory = HostMemory(40 * 2**20 + 12_345)
    memory.lie_in_parts(7)
    threading.Thread(target=memory.populate_unused, daemon=True).start()
    memory.begin_to_use()
    memory.view[:] = b"\7" * memory.num_bytes
    assert memory.populate_while(lambda: True)
    assert bytes(memory.view) == b"\7" * memory.num_bytes


def test_pages_are_missing_until_they_are_put_in_place_or_touched() -> None:
    memory = HostMemory(40 * 2**20)
    before = resident_bytes()
    assert memory.missing_bytes() == memory.num_bytes
    memory.view[2**21 * 5] = 1
    assert memory.num_bytes - 2**21 <= memory.missing_bytes() < memory.num_bytes
    looks = iter([True] * 8 + [False])
    assert not memory.populate_while(lambda: next(looks))
    assert 0 < memory.missing_bytes() <= memory.num_bytes - 8 * 2**21
    assert memory.populate_while(lambda: True)
    assert memory.missing_bytes() == 0
    assert resident_bytes() - before >= 38 * 2**20


def test_a_thread_puts_pages_in_place_first_things_first_and_stops_when_they_are_used() -> None:
    memory = HostMemory(4 * 2**23)
    memory.lie_in_parts(4)
    threading.Thread(target=memory.populate_unused, daemon=True).start()
    while memory.missing_bytes() > 0:
        pass
    memory.begin_to_use()
    assert not any(memory.view)


def test_at_a_start_the_beginnings_of_the_caches_parts_and_the_weights_are_put_in_place() -> None:
    memory = StartMemory.reserve(weight_bytes=2**23, cache_bytes=4 * 2**24, num_parts=4)
    memory.start_to_populate()
    while memory.weights.missing_bytes() > 0:
        pass
    assert memory.cache.missing_bytes() == 4 * 2**24 - 4 * HUGE_PAGE


def test_tensors_lie_in_given_memory_while_there_is_enough_of_it_and_elsewhere_then() -> None:
    memory = HostMemory(300)
    first, second, third = (
        pages.empty((count,), dtype=torch.int8, device=CPU, memory=memory).fill_(count)
        for count in (100, 80, 120)
    )
    assert second.data_ptr() - first.data_ptr() == 128  # a cache line begins
    assert bytes(memory.view[128:208]) == bytes([80]) * 80
    assert third.unique().tolist() == [120]
    assert first.unique().tolist() == [100]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(shape: tuple[int, ...]) -> None:
    made = pages.empty(shape, dtype=torch.int32, device=CPU)
    expected = torch.arange(made.numel(), dtype=torch.int32).view(shape)
    made.copy_(expected)
    assert torch.equal(made, expected)


def test_large_tensors_begin_on_a_huge_page() -> None:
    made = pages.empty((2**22,), dtype=torch.int8, device=CPU)
    assert made.data_ptr() % HUGE_PAGE == 0


def test_memory_lives_as_long_as_the_last_view_of_it() -> None:
    memory = HostMemory(4 * 2**22)
    made = pages.zeros(4, (2**20,), dtype=torch.int32, device=CPU, memory=memory)
    row = made[2].fill_(7)
    del made, memory
    gc.collect()
    assert (row == 7).all()


def test_more_than_there_is_is_refused_with_torchs_own_error() -> None:
    with pytest.raises(RuntimeError):
        pages.empty((2**50,), dtype=torch.float32, device=CPU)


def test_no_more_is_resident_than_was_asked_for() -> None:
    before = resident_bytes()
    shape, number = (2**21 + 2**19,), 40
    kept = [pages.empty(shape, dtype=torch.int8, device=CPU).zero_() for _ in range(number)]
    asked = sum(tensor.nbytes for tensor in kept)
    assert resident_bytes() - before < asked + 8 * 2**20  # a page more for each would be 60 MiB
