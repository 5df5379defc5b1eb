"""Every parameter of a model by name and shape: the exact weight bytes, before any download.

The names are those of the published checkpoints, so a safetensors header can be compared with
them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qwen_engine.planning.shape import BYTES_PER_ELEMENT, INT8_SCALE_BYTES, DTypeName, ModelShape


def parameter_shapes(model: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each parameter the engine loads: its name in the checkpoint and its shape."""
    prefix = model.traits.prefix
    yield f"{prefix}embed_tokens.weight", (model.vocab_size, model.hidden_size)
    for layer in range(model.num_layers):
        for name, shape in _layer_shapes(model):
            yield f"{prefix}layers.{layer}.{name}", shape
    yield f"{prefix}norm.weight", (model.hidden_size,)
    if not model.tie_word_embeddings:
        yield "lm_head.weight", (model.vocab_size, model.hidden_size)


def num_parameters(model: ModelShape) -> int:
    """Return the number of parameters the engine loads."""
    # Layers are equal: counting one keeps a config with a billion of them from being a loop.
    layer = sum(prod(shape) for _, shape in _layer_shapes(model))
    tables = 1 if model.tie_word_embeddings else 2
    return (
        model.num_layers * layer + tables * model.vocab_size * model.hidden_size + model.hidden_size
    )


def weight_bytes(model: ModelShape, dtype: DTypeName) -> int:
    """Return the bytes of all parameters: at one data type, but for those kept in int8."""
    size = BYTES_PER_ELEMENT[dtype]
    if not model.int8_weights:
        return num_parameters(model) * size
    shapes = [shape for _, shape in _layer_shapes(model) if len(shape) == 2]
    rows = model.num_layers * sum(rows for rows, _ in shapes) + model.vocab_size
    values = model.num_layers * sum(map(prod, shapes)) + model.vocab_size * model.hidden_size
    return values + rows * INT8_SCALE_BYTES + (num_parameters(model) - values) * size


def _layer_shapes(model: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn = model.hidden_size, model.intermediate_size
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    for name, rows in (("q", model.q_size), ("k", model.kv_size), ("v", model.kv_size)):
        yield f"self_attn.{name}_proj.weight", (rows, hidden)
        if model.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, model.q_size)
    if model.output_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    if model.qk_norm:
        yield "self_attn.q_norm.weight", (model.head_dim,)
        yield "self_attn.k_norm.weight", (model.head_dim,)
    for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
        yield f"mlp.{name}_proj.weight", shape
        if model.mlp_bias:
            yield f"mlp.{name}_proj.bias", (shape[0],)
