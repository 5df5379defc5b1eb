"""The planner prices what the engine really allocates: the same tensors, the same bounds."""

from dataclasses import fields, replace
from math import prod
from pathlib import Path

import pytest
import torch

from qwen_engine.config import EngineConfig
from qwen_engine.layers.attention import sdpa
from qwen_engine.layers.rotary import RotaryEmbedding
from qwen_engine.model_config import ModelConfig, RopeConfig
from qwen_engine.models import vision_tiles
from qwen_engine.models.decoder import Decoder
from qwen_engine.models.vision import VisionTower
from qwen_engine.planning import find_model, model_ids, parameter_shapes
from qwen_engine.planning.ledger import GATHERED_TOKENS, block_bytes
from qwen_engine.planning.shape import BYTES_PER_ELEMENT
from qwen_engine.planning.vision import vision_parameter_shapes
from qwen_engine.planning.vision_memory import TILE_PATCHES
from qwen_engine.planning.weights import tower_bytes, weight_bytes
from qwen_engine.worker import kv_block


def decoder_of(model):
    config = ModelConfig(
        **{field.name: getattr(model, field.name) for field in fields(model)},
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e4),
        eos_token_ids=frozenset(),
    )
    with torch.device("meta"):
        return Decoder(config, RotaryEmbedding(config.rope, config.head_dim, 1))


@pytest.mark.parametrize("model_id", model_ids())
def test_the_engine_allocates_the_parameters_that_the_planner_counts(model_id):
    model = find_model(model_id)
    planned = dict(parameter_shapes(model))
    tensors = decoder_of(model).checkpoint_tensors(planned)  # experts as published
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == planned


def test_the_planner_knows_how_much_context_attention_gathers():
    assert GATHERED_TOKENS == sdpa.MAX_GROUP_TOKENS


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_size", [16, 128])
def test_a_block_takes_the_bytes_that_the_planner_counts(kv_cache_dtype, dtype, block_size):
    model = replace(find_model("Qwen/Qwen3-8B"), kv_cache_dtype=kv_cache_dtype)
    config = EngineConfig(
        model_path=Path(), max_model_len=64, num_gpu_blocks=1, dtype=dtype,
        block_size=block_size, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    shape, kind = kv_block(config, model)
    one_part = prod(shape) * kind.itemsize
    assert 2 * model.num_layers * one_part == block_bytes(model, dtype, block_size)


@pytest.mark.parametrize(
    "model_id", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_weights_take_the_bytes_that_the_planner_counts(model_id, dtype):
    model = replace(find_model(model_id), int8_weights=True)
    decoder = decoder_of(model)
    taken = sum(
        p.numel() * (BYTES_PER_ELEMENT[dtype] if p.is_floating_point() else 1)
        for p in decoder.parameters()
    )
    assert taken == weight_bytes(model, dtype)


def test_eight_bits_hold_nearly_twice_the_tokens():
    model = find_model("Qwen/Qwen3-8B")
    eight = replace(model, kv_cache_dtype="int8")
    assert block_bytes(model, "bfloat16", 16) / block_bytes(eight, "bfloat16", 16) > 1.96


@pytest.mark.parametrize("model_id", [name for name in model_ids() if "-VL-" in name])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_vision_tower_takes_the_bytes_that_the_planner_counts(model_id, dtype):
    model = find_model(model_id)
    with torch.device("meta"):
        tower = VisionTower(model.vision)
    assert dict(vision_parameter_shapes(model.vision)) == {
        name: tuple(tensor.shape) for name, tensor in tower.checkpoint_tensors().items()
    }
    taken = sum(p.numel() for p in tower.parameters()) * BYTES_PER_ELEMENT[dtype]
    assert taken == tower_bytes(model, dtype)


def test_the_planner_knows_the_towers_tiles():
    assert TILE_PATCHES == vision_tiles.TILE_PATCHES
    assert (
        max(
            tile.rows.stop - tile.rows.start
            for tile in vision_tiles.cut_tiles([(3, 400), (1, 9000)])
        )
        <= TILE_PATCHES
    )
