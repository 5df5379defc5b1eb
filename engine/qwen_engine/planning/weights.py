"""Every parameter of a model by name and shape: the exact weight bytes, before any download.

The names are those of the published checkpoints, so a safetensors header can be compared with
them one by one. Bytes are also given per GPU under tensor parallelism and under quantisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from qwen_engine.planning.quantities import ceil_div
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, INT8_SCALE_BYTES, DTypeName, ModelShape
from qwen_engine.planning.tower import tower_shapes


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of one decoder layer on one GPU.

    Attributes:
        fused: the name of the tensor that engines merge it into.
        count: how many of that shape there are, one for each expert.
    """

    module: str
    fused: str
    rows: int
    cols: int
    count: int = 1


def parameter_shapes(model: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each parameter the engine loads: its name in the checkpoint and its shape."""
    prefix = model.traits.prefix
    yield f"{prefix}embed_tokens.weight", (model.vocab_size, model.hidden_size)
    for layer in range(model.num_layers):
        for name, shape in _layer_shapes(model, is_dense=layer in model.dense_layers):
            yield f"{prefix}layers.{layer}.{name}", shape
    yield f"{prefix}norm.weight", (model.hidden_size,)
    if not model.tie_word_embeddings:
        yield "lm_head.weight", (model.vocab_size, model.hidden_size)


def num_parameters(model: ModelShape) -> int:
    """Return the number of parameters the engine loads."""
    # Layers are equal: counting one keeps a config with a billion of them from being a loop.
    dense = len(model.dense_layers)
    layers = (model.num_layers - dense) * _layer_parameters(model, is_dense=False)
    layers += dense * _layer_parameters(model, is_dense=True) if dense else 0
    tables = 1 if model.tie_word_embeddings else 2
    return layers + tables * model.vocab_size * model.hidden_size + model.hidden_size


@lru_cache(maxsize=256)
def _layer_parameters(model: ModelShape, *, is_dense: bool) -> int:
    return sum(prod(shape) for _, shape in _layer_shapes(model, is_dense=is_dense))


@lru_cache(maxsize=256)
def num_tower_parameters(model: ModelShape) -> int:
    """Return the number of parameters of the vision tower; 0 without one."""
    return sum(prod(shape) for shape in tower_shapes(model.tower)) if model.tower else 0


@lru_cache(maxsize=256)
def weight_bytes(model: ModelShape, dtype: DTypeName, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of the decoder's parameters on one GPU, scales included."""
    size, t = BYTES_PER_ELEMENT[dtype], tensor_parallel_size
    if model.int8_weights:
        return _int8_bytes(model, size)
    if model.quantization is None and t == 1:
        return num_parameters(model) * size
    return int(_computed_bytes(model, size, t) * checkpoint_factor(model, size))


def _int8_bytes(model: ModelShape, size: int) -> int:
    """Return the bytes where the matrices of all products are made int8 at load."""
    dense = len(model.dense_layers)
    rows, values = model.vocab_size, model.vocab_size * model.hidden_size
    for num_layers, is_dense in ((model.num_layers - dense, False), (dense, True)):
        for matrix in layer_matrices(model, is_dense=is_dense):
            rows += num_layers * matrix.count * matrix.rows
            values += num_layers * matrix.count * matrix.rows * matrix.cols
    return values + rows * INT8_SCALE_BYTES + (num_parameters(model) - values) * size


@lru_cache(maxsize=256)
def checkpoint_factor(model: ModelShape, size: int) -> float:
    """Return how much larger a packed checkpoint's files are than computed; 1 without files."""
    if model.quantization is None or model.checkpoint_bytes is None:
        return 1.0
    return model.checkpoint_bytes / _computed_bytes(model, size, 1)


def _computed_bytes(model: ModelShape, size: int, t: int) -> int:
    dense = len(model.dense_layers)
    layers = (model.num_layers - dense) * _layer_bytes(model, size, t, is_dense=False)
    layers += dense * _layer_bytes(model, size, t, is_dense=True) if dense else 0
    return layers + table_bytes(model, size, t) + model.hidden_size * size


def table_bytes(model: ModelShape, size: int, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of embeddings and head, whose vocabulary is sharded."""
    rows = ceil_div(model.vocab_size, tensor_parallel_size)
    packed = model.quantization if model.quantization and model.quantization.whole_model else None
    each = packed.packed_bytes(rows, model.hidden_size) if packed else (
        rows * model.hidden_size * size
    )  # fmt: skip
    return each * (1 if model.tie_word_embeddings else 2)


def tower_bytes(model: ModelShape, dtype: DTypeName) -> int:
    """Return the bytes of the vision tower in our own engine, which keeps all of it unpacked."""
    return num_tower_parameters(model) * BYTES_PER_ELEMENT[dtype]


def layer_matrices(
    model: ModelShape, tensor_parallel_size: int = 1, *, is_dense: bool = False
) -> tuple[Matrix, ...]:
    """Return a layer's matrices on one GPU. KV heads are replicated where there are too few."""
    t, hidden = tensor_parallel_size, model.hidden_size
    query = ceil_div(model.num_heads, t) * model.head_dim
    key = max(1, model.num_kv_heads // t) * model.head_dim
    attention = (
        Matrix("self_attn.q_proj", "qkv", query, hidden),
        Matrix("self_attn.k_proj", "qkv", key, hidden),
        Matrix("self_attn.v_proj", "qkv", key, hidden),
        Matrix("self_attn.o_proj", "o", hidden, query),
    )
    experts = None if is_dense else model.experts
    inner = ceil_div(experts.intermediate_size if experts else model.intermediate_size, t)
    count = experts.num_experts if experts else 1
    return (
        *attention,
        Matrix("mlp.gate_proj", "gate_up", inner, hidden, count),
        Matrix("mlp.up_proj", "gate_up", inner, hidden, count),
        Matrix("mlp.down_proj", "down", hidden, inner, count),
    )


def matrix_bytes(model: ModelShape, matrix: Matrix, size: int) -> tuple[int, int]:
    """Return the bytes of a matrix's weights, and of their scales."""
    packing = model.quantization
    if packing is None or packing.keeps(matrix.module):
        return matrix.count * matrix.rows * matrix.cols * size, 0
    return (
        matrix.count * packing.packed_bytes(matrix.rows, matrix.cols),
        matrix.count * packing.scale_total(matrix.rows, matrix.cols),
    )


def small_parameters(
    model: ModelShape, tensor_parallel_size: int = 1, *, is_dense: bool = False
) -> int:
    """Return a layer's parameters that are no sharded matrix: norms, biases, the router."""
    matrices = sum(m.count * m.rows * m.cols for m in layer_matrices(model, is_dense=is_dense))
    whole = _layer_parameters(model, is_dense=is_dense) - matrices
    qkv = (model.q_size + 2 * model.kv_size) if model.qkv_bias else 0
    return whole - qkv + ceil_div(qkv, tensor_parallel_size)


def _layer_bytes(model: ModelShape, size: int, t: int, *, is_dense: bool) -> int:
    packed = sum(
        sum(matrix_bytes(model, matrix, size))
        for matrix in layer_matrices(model, t, is_dense=is_dense)
    )
    return packed + small_parameters(model, t, is_dense=is_dense) * size


def _layer_shapes(
    model: ModelShape, *, is_dense: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = model.hidden_size
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
    yield from _mlp_shapes(model) if is_dense or not model.experts else _expert_shapes(model)


def _mlp_shapes(model: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn = model.hidden_size, model.intermediate_size
    for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
        yield f"mlp.{name}_proj.weight", shape
        if model.mlp_bias:
            yield f"mlp.{name}_proj.bias", (shape[0],)


def _expert_shapes(model: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Qwen3-VL keeps all experts in two tensors; Qwen3 keeps each expert's matrices apart."""
    experts, hidden = model.experts, model.hidden_size
    if experts is None:
        return
    count, inner = experts.num_experts, experts.intermediate_size
    yield "mlp.gate.weight", (count, hidden)
    if model.traits.has_stacked_experts:
        yield "mlp.experts.gate_up_proj", (count, hidden, 2 * inner)
        yield "mlp.experts.down_proj", (count, inner, hidden)
        return
    for index in range(count):
        for name, shape in (
            ("gate", (inner, hidden)),
            ("up", (inner, hidden)),
            ("down", (hidden, inner)),
        ):
            yield f"mlp.experts.{index}.{name}_proj.weight", shape
