"""Whole layers in one C++ call give what the same layers give operation by operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import Kernel
from qwen_engine.layers.attention import AttentionMetadata
from qwen_engine.layers.attention.native import NativeBackend
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.gemm import ROW_COUNTS, GemmChoice, MeasuredGemm, Way
from qwen_engine.layers.int8_gemm import Int8Gemm
from qwen_engine.model_config import parse_model_config
from qwen_engine.models.attention import KVCache
from qwen_engine.models.decoder import Decoder, VisualRows

FOUND = NativeLibrary.find()
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="the C++ was not built, or this processor has no AVX2"
)
CPU = torch.device("cpu")
BLOCK, NUM_BLOCKS, HIDDEN = 16, 16, 96
LENS, CONTEXTS = np.array([5, 40, 1, 1]), np.array([5, 61, 20, 33])  # of the step's sequences
LAST_ROWS = torch.from_numpy(np.cumsum(LENS) - 1)
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 64,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "qwen2, with biases": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
}
WAYS = [
    way for way in ("fma", "dot", "tile", "int8 fma", "int8 dot", "widened dot", "widened tile")
    if FOUND is not None and way.endswith(FOUND.kernels)
]  # fmt: skip


def build(kind: str, way: Way) -> tuple[Decoder, list[KVCache]]:
    """Return a model of noise whose products are computed one way, and what fills its caches."""
    assert FOUND is not None
    config = parse_model_config(CONFIG | MODELS[kind])
    config = replace(config, int8_weights=way not in get_args(Kernel))
    model = Decoder.allocate(config, max_len=128, dtype=torch.bfloat16, device=CPU)
    source = torch.Generator().manual_seed(0)
    for name, target in model.checkpoint_tensors().items():
        scale = 1.0 if "norm" in name else 0.15
        target.copy_((torch.randn(target.shape, generator=source) * scale).bfloat16())
    choice = GemmChoice({way: dict.fromkeys(ROW_COUNTS, 1)}, is_packed=True)
    gemm = (Int8Gemm if config.int8_weights else MeasuredGemm)(choice, FOUND)
    model.use(gemm)
    model.use_library(FOUND)
    shape = (NUM_BLOCKS, BLOCK, 1, 64)
    caches = [
        (torch.randn(shape, generator=source).bfloat16(),) * 2 for _ in range(config.num_layers)
    ]
    caches = [(key.clone(), value.clone()) for key, value in caches]
    model.use_native_layers(caches, block_size=BLOCK, library=FOUND, gemm=gemm)
    assert model.native_layers is not None
    return model, caches


def forward(
    model: Decoder, caches: list[KVCache], wanted: torch.Tensor | None, **kwargs: Any
) -> torch.Tensor:
    """Run the step on caches that are put back afterwards."""
    assert FOUND is not None
    tables = np.arange(4 * 4).reshape(4, 4)
    starts = np.concatenate(([0], np.cumsum(LENS)))
    metadata = AttentionMetadata(starts, CONTEXTS, tables, BLOCK)
    positions = np.concatenate([np.arange(c - n, c) for n, c in zip(LENS, CONTEXTS, strict=True)])
    owners = np.repeat(np.arange(4), LENS)
    slots = tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK
    before = [(key.clone(), value.clone()) for key, value in caches]
    result = model(
        torch.from_numpy(positions % 64),
        torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        attention=NativeBackend(FOUND).prepare(metadata, dtype=torch.bfloat16, device=CPU),
        caches=caches,
        wanted=wanted,
        **kwargs,
    )
    for now, then in zip(caches, before, strict=True):
        for part, old in zip(now, then, strict=True):
            part.copy_(old)
    return result.clone()


def by_operation(model: Decoder, *args: Any, **kwargs: Any) -> torch.Tensor:
    stack, model.native_layers = model.native_layers, None
    result = forward(model, *args, **kwargs)
    model.native_layers = stack
    return result


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within what sums in another order come to after three layers."""
    assert found.shape == expected.shape
    assert (found - expected).float().norm() <= 0.01 * expected.float().norm()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_layers_in_one_call_are_the_layers_one_by_one(kind: str, way: Way) -> None:
    model, caches = build(kind, way)
    assert torch.equal(forward(model, caches, None), by_operation(model, caches, None))


@pytest.mark.parametrize("way", WAYS)
def test_only_wanted_rows_leave_the_last_layer(way: Way) -> None:
    model, caches = build("qwen3", way)
    expected = by_operation(model, caches, None)
    for wanted in (LAST_ROWS, LAST_ROWS[1:2], torch.tensor([4, 20, 44])):
        assert_near(forward(model, caches, wanted), expected[wanted])
        assert torch.equal(by_operation(model, caches, wanted), expected[wanted])


def test_where_no_row_is_wanted_keys_and_values_are_still_written() -> None:
    """A prompt's tokens from the first on, all of them in the first three blocks."""
    assert FOUND is not None
    model, caches = build("qwen3", WAYS[0])
    count = 3 * BLOCK
    metadata = AttentionMetadata(
        np.array([0, count]), np.array([count]), np.arange(3)[None, :], BLOCK
    )
    written: list[list[torch.Tensor]] = []
    for wanted in (None, torch.empty(0, dtype=torch.int64)):
        rows = model(
            torch.arange(count),
            torch.arange(count),
            slots=torch.arange(count),
            attention=NativeBackend(FOUND).prepare(metadata, dtype=torch.bfloat16, device=CPU),
            caches=caches,
            wanted=wanted,
        )
        assert len(rows) == (count if wanted is None else 0)
        written.append([part[:3].clone() for cache in caches for part in cache])
        for cache in caches:
            cache[0].zero_()
            cache[1].zero_()
    assert all(map(torch.equal, *written))


@pytest.mark.parametrize("num_taps", [0, 1, 2, 3])
def test_pictures_and_their_taps_enter_between_layers(num_taps: int) -> None:
    model, caches = build("qwen3", WAYS[0])
    source = torch.Generator().manual_seed(1)
    rows = torch.tensor([3, 4, *range(10, 17), 44])
    values = torch.randn(len(rows), (1 + num_taps) * HIDDEN, generator=source).bfloat16()
    visual = VisualRows(rows, values)
    found = forward(model, caches, None, visual=visual)
    assert torch.equal(found, by_operation(model, caches, None, visual=visual))
    assert not torch.equal(found, forward(model, caches, None))
    assert_near(forward(model, caches, LAST_ROWS, visual=visual), found[LAST_ROWS])


def test_another_attention_backend_is_used_operation_by_operation() -> None:
    model, caches = build("qwen3", WAYS[0])
    native = forward(model, caches, LAST_ROWS)

    class Prepared(NativeBackend):
        prepare = ReferenceBackend.prepare  # type: ignore[assignment]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.NativeBackend", Prepared)
        assert_near(forward(model, caches, LAST_ROWS), native)
