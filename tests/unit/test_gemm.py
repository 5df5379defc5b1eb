"""Products with packed weights: every way gives what the plain product gives."""

from __future__ import annotations

import logging

import pytest
import torch

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import can_pack
from qwen_engine.layers.gemm import (
    MAX_COPIED_VALUES,
    ROW_COUNTS,
    GemmChoice,
    MeasuredGemm,
    Way,
    choose_gemm,
)
from qwen_engine.layers.linear import Linear

LIBRARY = NativeLibrary.find()
needs_library = pytest.mark.skipif(
    LIBRARY is None, reason="native.cpp was not built, or this processor has no AVX2"
)
PACKED_WAYS: tuple[Way, ...] = (*(LIBRARY.kernels if LIBRARY else ()), "unpack")


def random_bfloat16(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def times(**microseconds: int) -> dict[Way, dict[int, int]]:
    return {way: dict.fromkeys(ROW_COUNTS, us) for way, us in microseconds.items()}  # type: ignore[misc]


@needs_library
@pytest.mark.parametrize("shape", [(32, 2), (64, 64), (416, 254), (96, 3072)])
def test_a_packed_weight_unpacks_to_what_it_was(shape: tuple[int, int]) -> None:
    assert LIBRARY is not None
    plain = random_bfloat16(*shape)
    packed = plain.clone()
    LIBRARY.pack(packed)
    LIBRARY.unpack(packed, out=packed)
    assert torch.equal(packed, plain)


@needs_library
@pytest.mark.parametrize("way", PACKED_WAYS)
@pytest.mark.parametrize("num_rows", [*range(1, 27), 64, 257, 1030])
def test_every_way_is_within_rounding_of_the_float32_product(way: Way, num_rows: int) -> None:
    assert LIBRARY is not None
    weight, x, bias = random_bfloat16(96, 130), random_bfloat16(num_rows, 130), random_bfloat16(96)
    exact = x.float() @ weight.float().T + bias.float()
    LIBRARY.pack(weight)
    gemm = MeasuredGemm(GemmChoice(times(**{way: 1}), is_packed=True), LIBRARY)
    result = gemm.linear(x, weight, bias).float()
    # bfloat16 keeps 8 bits: half a unit in the last place of the result, and sums in any order
    assert torch.all((result - exact).abs() <= exact.abs() * 2**-8 + 1e-3)


@needs_library
def test_rows_with_gaps_between_them_are_read_where_they_are() -> None:
    assert LIBRARY is not None
    weight, wide = random_bfloat16(64, 32), random_bfloat16(7, 100)
    expected = torch.nn.functional.linear(wide[:, :32].float(), weight.float())
    LIBRARY.pack(weight)
    gemm = MeasuredGemm(GemmChoice(times(fma=1), is_packed=True), LIBRARY)
    result = gemm.linear(wide[:, :32], weight, None).float()
    torch.testing.assert_close(result, expected, rtol=2**-8, atol=1e-3)


@needs_library
@pytest.mark.skipif(LIBRARY is None or "tile" not in LIBRARY.kernels, reason="no AMX here")
def test_tiles_are_not_disturbed_by_onednn_which_has_shapes_of_its_own_for_them() -> None:
    assert LIBRARY is not None
    weight, x, other = random_bfloat16(96, 128), random_bfloat16(45, 128), random_bfloat16(77, 96)
    plain = weight.clone()
    LIBRARY.pack(weight)
    gemm = MeasuredGemm(GemmChoice(times(tile=1), is_packed=True), LIBRARY)
    alone = gemm.linear(x, weight, None), torch.nn.functional.linear(other, other)
    exact = x.float() @ plain.float().T
    torch.testing.assert_close(alone[0].float(), exact, rtol=2**-7, atol=1e-2)
    for _ in range(100):
        assert torch.equal(torch.nn.functional.linear(other, other), alone[1])
        assert torch.equal(gemm.linear(x, weight, None), alone[0])


@needs_library
@pytest.mark.parametrize("way", PACKED_WAYS)
def test_not_a_number_stays_in_its_row(way: Way) -> None:
    assert LIBRARY is not None
    weight, x = random_bfloat16(32, 8), random_bfloat16(3, 8)
    x[1, 4] = torch.nan
    LIBRARY.pack(weight)
    gemm = MeasuredGemm(GemmChoice(times(**{way: 1}), is_packed=True), LIBRARY)
    is_nan = gemm.linear(x, weight, None).isnan()
    assert is_nan[1].all()
    assert not is_nan[[0, 2]].any()


@needs_library
def test_embeddings_are_read_from_a_packed_table() -> None:
    assert LIBRARY is not None
    table = random_bfloat16(128, 48)
    ids = torch.tensor([0, 31, 32, 127, 5, 5])
    expected = table[ids]
    LIBRARY.pack(table)
    gemm = MeasuredGemm(GemmChoice(times(fma=1), is_packed=True), LIBRARY)
    assert torch.equal(gemm.lookup(ids, table), expected)


def test_the_way_measured_fastest_at_the_nearest_number_of_rows_is_taken() -> None:
    tried = times(torch=10, fma=10, dot=20)
    tried["dot"][1] = 5
    choice = GemmChoice(tried, is_packed=True)
    assert [choice.way(rows) for rows in (1, 2, 3, 16, 5000)] == ["dot", "fma", "fma", "fma", "fma"]
    assert GemmChoice(tried, is_packed=False).way(1) == "torch"


def test_a_weight_too_large_to_copy_is_used_as_it_is() -> None:
    choice = GemmChoice(times(torch=9, float32=1, fma=9, unpack=1), is_packed=True)
    assert choice.way(64) == "unpack"
    assert choice.way(64, may_copy=False) == "fma"
    assert MAX_COPIED_VALUES < 151_936 * 1024  # the head of Qwen3-0.6B


@pytest.mark.parametrize("library", [LIBRARY, None])
def test_measuring_leaves_the_weights_as_they_were(
    library: NativeLibrary | None, caplog: pytest.LogCaptureFixture
) -> None:
    weights = [random_bfloat16(64, 64, seed=seed) for seed in range(3)]
    before = [weight.clone() for weight in weights]
    with caplog.at_level(logging.INFO):
        gemm = choose_gemm(weights, library)
    assert gemm is not None
    assert gemm.choice.is_packed in (False, library is not None)
    assert all(map(torch.equal, weights, before))
    assert "256 rows: " in caplog.text


def test_nothing_is_chosen_for_other_dtypes() -> None:
    assert choose_gemm([torch.ones(64, 64)], LIBRARY) is None


def test_a_weight_that_cannot_be_packed_stays_plain() -> None:
    linear = Linear(6, {"a": 33}).to(torch.bfloat16)
    assert not can_pack(linear.weight)
    torch.nn.init.ones_(linear.weight)
    linear.use(MeasuredGemm(GemmChoice(times(fma=1), is_packed=True), LIBRARY))
    assert linear(torch.ones(1, 6, dtype=torch.bfloat16)).tolist() == [[6.0] * 33]
