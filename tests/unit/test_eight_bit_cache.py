"""Keys and values in 8 bits: what is stored, that both sides store the same, that all read it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.attention import AttentionBackend, AttentionMetadata, eight_bit, store_kv
from qwen_engine.layers.attention.native import NativeBackend
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.attention.sdpa import SdpaBackend

LIBRARY = NativeLibrary.find()
needs_library = pytest.mark.skipif(
    LIBRARY is None, reason="the C++ was not built, or this processor has no AVX2"
)
CPU = torch.device("cpu")
DTYPES = list(eight_bit.DTYPES.values())
Cache = tuple[torch.Tensor, torch.Tensor]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def new_cache(
    dtype: torch.dtype, num_blocks: int, block_size: int, shape: tuple[int, int]
) -> Cache:
    num_bytes = block_size * shape[0] * eight_bit.row_bytes(shape[1])
    keys, values = (torch.zeros(num_blocks, num_bytes, dtype=dtype) for _ in range(2))
    return keys, values


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int8), b.view(torch.int8))


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.int8, 0.5 / 127 + 2**-9), (torch.float8_e4m3fn, 2**-4)]
)
def test_what_is_read_is_near_what_was_stored(dtype: torch.dtype, error: float) -> None:
    x = noise(50, 3, 64) * torch.logspace(-6, 6, 50).view(-1, 1, 1)
    wide = eight_bit.widen(*eight_bit.quantise(x, dtype), torch.float32)
    largest = x.float().abs().amax(dim=-1, keepdim=True)
    assert torch.all((wide - x.float()).abs() <= error * largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros_and_what_is_not_finite_stays_visible(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 16)
    x[1, 4], x[2, 5] = torch.nan, -torch.inf
    wide = eight_bit.widen(*eight_bit.quantise(x, dtype), torch.float32)
    assert wide[0].tolist() == [0.0] * 16
    assert wide[1:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_stored_alike_alone_and_among_others(dtype: torch.dtype) -> None:
    key, slots = noise(9, 2, 16), torch.tensor([11, 0, 5, 6, 7, 1, 2, 8, 10])
    together, apart = (new_cache(dtype, 3, 4, (2, 16)) for _ in range(2))
    store_kv(together, slots, key, -key)
    for row, slot in enumerate(slots):
        store_kv(apart, slot.view(1), key[row : row + 1], -key[row : row + 1])
    assert all(map(same_bytes, together, apart))
    assert together[0].view(torch.int8).count_nonzero() > 200


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_cpp_stores_the_bytes_that_torch_stores(dtype: torch.dtype) -> None:
    assert LIBRARY is not None
    rows, heads, kv_heads, size = 64, 4, 2, 64
    # no norms, no turn: keys and values arrive as they are, over all magnitudes
    qkv = noise(rows, heads + 2 * kv_heads, size) * torch.logspace(-8, 8, rows).view(-1, 1, 1)
    qkv[0] = 0
    qkv = qkv.to(torch.bfloat16)
    cos, sin = torch.ones(rows, 1, size).bfloat16(), torch.zeros(rows, 1, size).bfloat16()
    slots = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:rows]
    cache, expected = (new_cache(dtype, 5, 16, (kv_heads, size)) for _ in range(2))
    LIBRARY.heads(qkv, cache, slots, kv_heads=kv_heads, norms=None, rotary=(cos, sin))
    store_kv(expected, slots, qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :])
    assert all(map(same_bytes, cache, expected))


@needs_library
def test_cpp_writes_e4m3_as_torch_does_for_every_bfloat16() -> None:
    assert LIBRARY is not None
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    every = every[every.float().abs() < 448]
    every = torch.nn.functional.pad(every, (0, -len(every) % 31)).view(-1, 1, 31)
    values = torch.nn.functional.pad(every, (0, 1), value=448.0)  # so the scale is 1 in each row
    rows = len(values)
    cos, sin = torch.ones(rows, 1, 32).bfloat16(), torch.zeros(rows, 1, 32).bfloat16()
    cache = new_cache(torch.float8_e4m3fn, rows, 1, (1, 32))
    qkv = values.repeat(1, 3, 1)
    LIBRARY.heads(qkv, cache, torch.arange(rows), kv_heads=1, norms=None, rotary=(cos, sin))
    written, _ = eight_bit.split(cache[1], 1, 32)
    assert same_bytes(written[:, 0].contiguous(), values.float().to(torch.float8_e4m3fn))


def backends() -> list[AttentionBackend]:
    return [SdpaBackend(), *([NativeBackend(LIBRARY)] if LIBRARY else [])]


@pytest.mark.parametrize("backend", backends(), ids=lambda backend: type(backend).__name__)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 3), (4, 4), (12, 1)])
def test_every_backend_reads_what_the_reference_reads(
    backend: AttentionBackend, dtype: torch.dtype, size: int, heads: int, kv_heads: int
) -> None:
    lens = np.array([1, 1, 1, 5, 300, 33, 1, 2])
    contexts = np.array([1, 257, 700, 5, 300, 600, 512, 258])
    metadata, cache = fill_cache(dtype, (lens, contexts), 16, (kv_heads, size))
    query = noise(int(lens.sum()), heads, size, seed=3) * 2
    step = backend.prepare(metadata, dtype=torch.bfloat16, device=CPU)
    oracle = ReferenceBackend().prepare(metadata, dtype=torch.float32, device=CPU)
    torch.testing.assert_close(
        step.attend(query, *cache).float(),
        oracle.attend(query.float(), *cache),
        rtol=2**-7,
        atol=2e-2,
    )


def fill_cache(
    dtype: torch.dtype,
    step: tuple[np.ndarray, np.ndarray],
    block_size: int,
    shape: tuple[int, int],
) -> tuple[AttentionMetadata, Cache]:
    """Give each sequence blocks of its own, in no order."""
    lens, contexts = step
    counts = -(-contexts // block_size)
    ids = np.random.default_rng(0).permutation(int(counts.sum()) + 3)
    tables = np.zeros((len(lens), int(counts.max())), dtype=np.int64)
    cache, taken = new_cache(dtype, len(ids), block_size, shape), 0
    for row, count, context in zip(tables, counts.tolist(), contexts.tolist(), strict=True):
        row[:count] = ids[taken : taken + count]
        taken += count
        slots = (row[:count, None] * block_size + np.arange(block_size)).reshape(-1)[:context]
        new = noise(context, *shape, seed=context), noise(context, *shape, seed=context + 1)
        store_kv(cache, torch.from_numpy(slots), *new)
    starts = np.concatenate(([0], np.cumsum(lens)))
    return AttentionMetadata(starts, contexts, tables, block_size), cache
