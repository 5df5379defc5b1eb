"""Weights in int8: how rows are made, and that every way of multiplying gives the same."""

from __future__ import annotations

import logging

import pytest
import torch

from qwen_engine.errors import UnsupportedModelError
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import INT8_WAYS
from qwen_engine.layers import int8
from qwen_engine.layers.gemm import ROW_COUNTS, GemmChoice, TorchGemm, Way
from qwen_engine.layers.int8_gemm import Int8Gemm, choose_int8_gemm

LIBRARY = NativeLibrary.find()
needs_library = pytest.mark.skipif(
    LIBRARY is None, reason="the C++ was not built, or this processor has no AVX2"
)
WAYS: tuple[Way, ...] = (
    *(way for way in INT8_WAYS if LIBRARY and way.endswith(LIBRARY.kernels)),
    "unpack",
)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def make_weight(source: torch.Tensor) -> torch.Tensor:
    weight = torch.empty(int8.stored_shape(*source.shape), dtype=torch.int8)
    int8.Int8Rows(weight).copy_(source)
    return weight


def widened(weight: torch.Tensor) -> torch.Tensor:
    values, scales = int8.split(weight)
    return values * scales


def gemm_of(way: Way) -> Int8Gemm:
    assert LIBRARY is not None
    return Int8Gemm(GemmChoice({way: dict.fromkeys(ROW_COUNTS, 1)}, is_packed=True), LIBRARY)


def test_each_row_is_kept_to_half_a_step_of_its_own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "_QUANTISED_VALUES", 100)  # three rows at a time
    source = noise(50, 32) * torch.logspace(-5, 5, 50).view(-1, 1)
    source[7] = 0
    weight = make_weight(source)
    largest = source.abs().amax(dim=1, keepdim=True)
    assert torch.all((widened(weight) - source).abs() <= largest / 254 * 1.0001)
    assert int8.split(weight)[0].abs().amax(dim=1).tolist() == [
        127 if n != 7 else 0 for n in range(50)
    ]


def test_rows_of_a_part_are_written_where_they_belong() -> None:
    weight = torch.zeros(5, 12, dtype=torch.int8)
    part = int8.Int8Rows(weight).narrow(0, 2, 2)
    assert part.shape == (2, 8)
    part.copy_(torch.full((2, 8), -3.0))
    assert widened(weight).tolist() == [[0] * 8] * 2 + [[-3] * 8] * 2 + [[0] * 8]


def test_sizes_that_would_misalign_the_scales_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="leave --quantization out"):
        int8.stored_shape(8, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_products_are_right_in_every_dtype(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_MULTIPLIED_VALUES", 1000)
    weight, x, bias = make_weight(noise(70, 64)), noise(3, 64).to(dtype), noise(70).to(dtype)
    exact = x.float() @ widened(weight).T + bias.float()
    result = TorchGemm().linear(x, weight, bias)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), exact, rtol=2**-6, atol=0.1)
    ids = torch.tensor([69, 0, 0, 5])
    assert torch.equal(TorchGemm().lookup(ids, weight), widened(weight)[ids])


@needs_library
@pytest.mark.parametrize("shape", [(32, 4), (64, 64), (416, 252)])
def test_a_packed_weight_unpacks_to_what_it_was(shape: tuple[int, int]) -> None:
    assert LIBRARY is not None
    plain = make_weight(noise(*shape))
    packed = plain.clone()
    LIBRARY.int8_pack(packed)
    ids = torch.tensor([0, 31, shape[0] - 1, 5, 5])
    assert torch.equal(gemm_of("unpack").lookup(ids, packed), widened(plain)[ids])
    LIBRARY.int8_pack(packed, back=True)
    assert torch.equal(packed, plain)


@needs_library
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_rows", [*range(1, 27), 64, 257, 1030])
def test_every_way_is_within_rounding_of_the_float32_product(way: Way, num_rows: int) -> None:
    weight, x, bias = make_weight(noise(96, 132)), noise(num_rows, 132), noise(96)
    exact = x.float() @ widened(weight).T + bias.float()
    gemm = gemm_of(way)
    gemm.adopt(weight)
    result = gemm.linear(x, weight, bias).float()
    # the result in bfloat16; 'unpack' rounds the weights too
    slack = 0.1 if way == "unpack" else 2e-3
    assert torch.all((result - exact).abs() <= exact.abs() * 2**-8 + slack)


@needs_library
@pytest.mark.parametrize("way", WAYS)
def test_every_value_comes_out_of_its_own_place_exactly(way: Way) -> None:
    values = torch.arange(64).view(64, 1) * 7 + torch.arange(256) * 3
    source = (values % 255 - 127).to(torch.bfloat16)
    source[:, 0] = 127  # so every scale is 1
    assert set(source.flatten().tolist()) == set(range(-127, 128))
    weight, gemm = make_weight(source), gemm_of(way)
    gemm.adopt(weight)
    result = gemm.linear(torch.eye(256, dtype=torch.bfloat16), weight, None)
    assert torch.equal(result, source.T)


@needs_library
def test_rows_with_gaps_between_them_are_read_where_they_are() -> None:
    weight, wide = make_weight(noise(64, 32)), noise(7, 100)
    expected = wide[:, :32].float() @ widened(weight).T
    gemm = gemm_of("int8 fma")
    gemm.adopt(weight)
    result = gemm.linear(wide[:, :32], weight, None).float()
    torch.testing.assert_close(result, expected, rtol=2**-8, atol=2e-3)


@needs_library
def test_measuring_leaves_the_weights_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    assert LIBRARY is not None
    weights = [make_weight(noise(64, 64, seed=seed)) for seed in range(3)]
    before = [weight.clone() for weight in weights]
    with caplog.at_level(logging.INFO):
        gemm = choose_int8_gemm(weights, LIBRARY)
    assert gemm is not None
    assert set(gemm.choice.report()["1"]) == {"way", *WAYS}
    assert all(map(torch.equal, weights, before))
    assert "256 rows: " in caplog.text
    assert choose_int8_gemm([make_weight(noise(33, 8))], LIBRARY) is None
