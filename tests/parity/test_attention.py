"""The fast attention backend against the oracle, on random caches, tables and lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qwen_engine.layers.attention import AttentionMetadata, store_kv
from qwen_engine.layers.attention import sdpa as sdpa_module
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.attention.sdpa import SdpaBackend

CPU = torch.device("cpu")

# (query length, context length) of each sequence
STEPS = {
    "one decode": [(1, 1)],
    "decodes of one length": [(1, 33)] * 5,
    "decodes of many lengths": [(1, n) for n in (3, 200, 1, 17, 16, 64, 65, 5)],
    "a whole prompt": [(40, 40)],
    "a later chunk": [(7, 90)],
    "prompts longer than a tile": [(70, 70), (70, 171)],
    "all mixed": [(1, 50), (20, 20), (1, 3), (5, 69), (1, 1), (2, 2)],
}


def make_step(
    lens: list[tuple[int, int]], block_size: int, shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[AttentionMetadata, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    num_heads, num_kv_heads, head_dim = shape
    source = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    num_blocks = [-(-context // block_size) for _, context in lens]
    pool = source.permutation(sum(num_blocks) + 3)  # scattered blocks, some of nobody
    tables = np.zeros((len(lens), max(num_blocks)), dtype=np.int64)
    for row, count in enumerate(num_blocks):
        tables[row, :count], pool = pool[:count], pool[count:]
    starts = np.concatenate(([0], np.cumsum([query for query, _ in lens])))
    metadata = AttentionMetadata(
        starts, np.array([context for _, context in lens]), tables, block_size
    )
    cache_shape = (sum(num_blocks) + 3, block_size, num_kv_heads, head_dim)
    key = torch.randn(cache_shape, generator=generator).to(dtype)
    value = torch.randn(cache_shape, generator=generator).to(dtype)
    query = torch.randn(int(starts[-1]), num_heads, head_dim, generator=generator).to(dtype)
    return metadata, query, (key, value)


@pytest.mark.parametrize("lens", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("shape", [(4, 2, 32), (3, 1, 64), (9, 3, 16), (2, 2, 8)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=["f32", "bf16"]
)
def test_sdpa_computes_what_the_formula_says(
    lens: list[tuple[int, int]],
    block_size: int,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sdpa_module, "TILE_ROWS", 32)
    metadata, query, cache = make_step(lens, block_size, shape, dtype)
    got, expected = (
        backend.prepare(metadata, dtype=dtype, device=CPU).attend(query, *cache)
        for backend in (SdpaBackend(), ReferenceBackend())
    )
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def test_decode_groups_bound_padding_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa_module, "MAX_GROUP_TOKENS", 64)
    lens = [(1, n) for n in (30, 9, 31, 3, 8, 100, 32)]
    metadata, *_ = make_step(lens, 4, (2, 1, 8), torch.float32)
    groups = SdpaBackend().prepare(metadata, dtype=torch.float32, device=CPU).parts
    contexts = [[lens[row][1] for row in group.rows.tolist()] for group in groups]
    assert contexts == [[3], [8, 9], [30, 31], [32], [100]]


def test_keys_and_values_go_to_their_slots() -> None:
    cache = (torch.zeros(3, 4, 2, 8), torch.zeros(3, 4, 2, 8))
    key = torch.randn(3, 2, 8)
    store_kv(cache, torch.tensor([11, 0, 5]), key, -key)
    assert torch.equal(cache[0][2, 3], key[0])
    assert torch.equal(cache[1][0, 0], -key[1])
    assert torch.equal(cache[0][1, 1], key[2])
    assert cache[0].count_nonzero() == 3 * 2 * 8
