"""The C++ between the products computes what torch computes, within bfloat16's rounding."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
import torch
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.attention import AttentionMetadata, eight_bit, store_kv
from qwen_engine.layers.attention.native import NativeBackend, choose_kernel
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.rotary import rotate

FOUND = NativeLibrary.find()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="the C++ was not built, or this processor has no AVX2"
)
CPU = torch.device("cpu")
ROUNDING = {"rtol": 2**-7, "atol": 1e-2}  # one unit in the last place of bfloat16


@pytest.fixture(params=FOUND.kernels if FOUND else ())
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The library, attending to prompts with this kernel."""
    found = NativeLibrary.find()
    assert found is not None
    found.attention = request.param
    return found


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 16), (7, 1024), (3, 5, 128)])
def test_norm_is_that_of_torch(library: NativeLibrary, shape: tuple[int, ...]) -> None:
    x, weight = noise(*shape), noise(shape[-1], seed=1)
    expected = functional.rms_norm(x.float(), weight.shape, weight.float(), 1e-6)
    torch.testing.assert_close(library.norm(x, weight, 1e-6).float(), expected, **ROUNDING)


def test_norm_adds_what_is_to_be_added_first(library: NativeLibrary) -> None:
    x, delta, weight = noise(7, 1024), noise(7, 1024, seed=1), noise(1024, seed=2)
    summed = x + delta
    expected = functional.rms_norm(summed.float(), weight.shape, weight.float(), 1e-6)
    torch.testing.assert_close(library.norm(x, weight, 1e-6, delta).float(), expected, **ROUNDING)
    assert torch.equal(x, summed)


def test_gate_is_silu_times_up_even_for_large_values(library: NativeLibrary) -> None:
    x = noise(9, 96) * 40
    gate, up = x.float().chunk(2, dim=-1)
    torch.testing.assert_close(library.gate(x).float(), functional.silu(gate) * up, **ROUNDING)


@pytest.mark.parametrize("has_norms", [True, False])
def test_heads_are_normalised_turned_and_stored(library: NativeLibrary, has_norms: bool) -> None:
    rows, heads, kv_heads, size = 9, 6, 3, 64
    qkv = noise(rows, heads + 2 * kv_heads, size)
    angles = torch.rand(rows, 1, size // 2).repeat(1, 1, 2) * 6
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
    weights = noise(size, seed=1), noise(size, seed=2)
    slots = torch.randperm(32)[:rows]
    cache = (
        torch.zeros(4, 8, kv_heads, size).bfloat16(),
        torch.zeros(4, 8, kv_heads, size).bfloat16(),
    )
    expected = tuple(part.float() for part in cache)

    query, key, value = qkv.float().split([heads, kv_heads, kv_heads], dim=1)
    if has_norms:
        query = functional.rms_norm(query, (size,), weights[0].float(), 1e-6)
        key = functional.rms_norm(key, (size,), weights[1].float(), 1e-6)
    query, key = (rotate(x, cos.float(), sin.float()) for x in (query, key))
    store_kv(expected, slots, key, value)

    norms = (*weights, 1e-6) if has_norms else None
    result = library.heads(qkv, cache, slots, kv_heads=kv_heads, norms=norms, rotary=(cos, sin))
    torch.testing.assert_close(result.float(), query, **ROUNDING)
    for part, wanted in zip(cache, expected, strict=True):
        torch.testing.assert_close(part.float(), wanted, **ROUNDING)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (3, 1), (12, 1), (4, 4)])
@pytest.mark.parametrize("block_size", [4, 16])
def test_attention_is_the_references(
    library: NativeLibrary, size: int, heads: int, kv_heads: int, block_size: int
) -> None:
    # decodes, chunks at the start and deep in a context, single tokens, borders of tiles
    lens = np.array([1, 1, 1, 5, 300, 33, 1, 2])
    contexts = np.array([1, 257, 700, 5, 300, 600, 512, 258])
    metadata, cache = make_cache(lens, contexts, block_size, (kv_heads, size))
    query = noise(int(lens.sum()), heads, size, seed=3) * 2
    step = NativeBackend(library).prepare(metadata, dtype=torch.bfloat16, device=CPU)
    oracle = ReferenceBackend().prepare(metadata, dtype=torch.float32, device=CPU)
    expected = oracle.attend(query.float(), cache[0].float(), cache[1].float())
    torch.testing.assert_close(step.attend(query, *cache).float(), expected, **ROUNDING)


def test_prompts_are_attended_to_with_the_kernel_that_was_measured_fastest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = NativeLibrary.find()
    assert found is not None
    with caplog.at_level(logging.INFO):
        choose_kernel(found, 64)
    if len(found.kernels) == 1:
        assert found.attention == found.kernels[0]
        return
    tried = {kernel: int(us) for kernel, us in re.findall(r"(\w+) (\d+)[, ]", caplog.text)}
    assert set(tried) == set(found.kernels)
    assert found.attention == min(tried, key=tried.__getitem__)


# Of a step: each sequence's tokens and context, and which begin with how many of the same blocks.
SHARING = {
    # two, then three that have less in common, one chunk, forty that fill several panels, one alone
    "decodes": (
        [1, 1, 1, 1, 1, 9, *[1] * 40, 1],
        [545, 577, 200, 161, 161, 300, *range(129, 169), 400],
        ((range(2), 17), (range(2, 5), 5), (range(6, 46), 4)),
    ),
    # one that computes what the others begin with, chunks and decodes by turns, one too long to
    # join, two that have it to themselves, one that shares less than the step's own tokens leave
    "chunks": (
        [544, 32, 20, 1, 32, 1, 90, 9, 40, 70],
        [544, 544, 532, 513, 600, 577, 602, 700, 250, 280],
        ((range(7), 16), (range(7, 9), 6), (range(9, 10), 8)),
    ),
}


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (12, 1)])
@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("sharing", SHARING)
def test_sequences_that_begin_with_the_same_blocks_get_what_each_gets_alone(
    library: NativeLibrary, heads: int, kv_heads: int, kind: torch.dtype | None, sharing: str
) -> None:
    lens, contexts = (np.array(each) for each in SHARING[sharing][:2])
    block_size, size = 32, 64
    metadata, cache = make_cache(lens, contexts, block_size, (kv_heads, size))
    for members, shared in SHARING[sharing][2]:
        for member in members:
            tables = metadata.block_tables
            tables[member, :shared] = tables[members[0], :shared]
    cache = tuple(part if kind is None else to_eight_bit(part, kind) for part in cache)
    query = noise(int(lens.sum()), heads, size, seed=3) * 2
    step = NativeBackend(library).prepare(metadata, dtype=torch.bfloat16, device=CPU)
    oracle = ReferenceBackend().prepare(metadata, dtype=torch.float32, device=CPU)
    wide = [part.float() if kind is None else part for part in cache]
    expected = oracle.attend(query.float(), wide[0], wide[1])
    torch.testing.assert_close(step.attend(query, cache[0], cache[1]).float(), expected, **ROUNDING)


def to_eight_bit(part: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return [blocks, block size, heads, size] as the same blocks in 8 bits."""
    num_blocks, block_size, heads, size = part.shape
    blocks = torch.zeros(num_blocks, block_size * heads * eight_bit.row_bytes(size)).to(kind)
    slots = torch.arange(num_blocks * block_size)
    eight_bit.store(blocks, slots, part.flatten(0, 1))
    return blocks


def make_cache(
    lens: np.ndarray, contexts: np.ndarray, block_size: int, shape: tuple[int, int]
) -> tuple[AttentionMetadata, tuple[torch.Tensor, torch.Tensor]]:
    """Give each sequence blocks of its own, in no order; what is not theirs is not a number."""
    counts = -(-contexts // block_size)
    ids = np.random.default_rng(0).permutation(int(counts.sum()) + 3)
    tables = np.zeros((len(lens), int(counts.max())), dtype=np.int64)
    parts = [torch.full((len(ids), block_size, *shape), torch.nan).bfloat16() for _ in range(2)]
    taken = 0
    for row, count, context in zip(tables, counts.tolist(), contexts.tolist(), strict=True):
        row[:count] = ids[taken : taken + count]
        taken += count
        slots = (row[:count, None] * block_size + np.arange(block_size)).reshape(-1)[:context]
        for seed, part in enumerate(parts):
            part.flatten(0, 1)[torch.from_numpy(slots)] = noise(
                context, *shape, seed=context + seed
            )
    starts = np.concatenate(([0], np.cumsum(lens)))
    return AttentionMetadata(starts, contexts, tables, block_size), (parts[0], parts[1])
