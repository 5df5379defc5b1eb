"""The planner prices what the engine really allocates: the same tensors, the same bounds."""

from dataclasses import fields

import pytest
import torch

from qwen_engine.layers.attention import sdpa
from qwen_engine.layers.rotary import RotaryEmbedding
from qwen_engine.model_config import ModelConfig, RopeConfig
from qwen_engine.models.decoder import Decoder
from qwen_engine.planning import find_model, model_ids, parameter_shapes
from qwen_engine.planning.ledger import GATHERED_TOKENS


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
    tensors = decoder_of(model).checkpoint_tensors()
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == planned


def test_the_planner_knows_how_much_context_attention_gathers():
    assert GATHERED_TOKENS == sdpa.MAX_GROUP_TOKENS
