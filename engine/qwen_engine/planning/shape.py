"""Model facts: what config.json says of a decoder's dimensions, checked.

The one reader of these fields: the planner uses it without the model on disk, the engine builds
its `ModelConfig` on it. Knows nothing about devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from qwen_engine.planning.architectures import ARCHITECTURES, Architecture, runnable
from qwen_engine.planning.errors import InvalidConfigError, UnsupportedModelError
from qwen_engine.planning.fields import positive_int, text_config
from qwen_engine.planning.quantized import Quantization, parse_quantization
from qwen_engine.planning.tower import Tower, parse_tower
from qwen_engine.planning.vision import VisionShape

DTypeName = Literal["float32", "bfloat16", "float16"]
BYTES_PER_ELEMENT: Mapping[DTypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
KVCacheDType = Literal["auto", "int8", "fp8"]
QuantizationName = Literal["none", "int8"]
INT8_SCALE_BYTES = 4  # of each row of a matrix in int8
KV_SCALE_BYTES = 2  # of each token's head in an 8-bit KV cache
_MOST_LISTED_LAYERS = 10_000  # one by one, where only some have experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts, in place of one MLP."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's dimensions, and what comes with it.

    Attributes:
        head_dim: independent of hidden_size / num_heads.
        max_len: tokens the positions are good for; YaRN stretches them beyond those trained.
        int8_weights: the engine makes the matrices of all products int8 while it loads them.
        kv_cache_dtype: how the engine keeps keys and values, as demanded; auto: in its own type.
        dense_layers: layers without experts in a model that has them.
        tower: the vision tower, if the checkpoint has one.
    """

    model_id: str
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool
    max_len: int
    qk_norm: bool  # RMSNorm over head_dim before the rotation
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    dtype: DTypeName  # the checkpoint's
    int8_weights: bool = False
    kv_cache_dtype: KVCacheDType = "auto"
    experts: Experts | None = None
    dense_layers: frozenset[int] = frozenset()
    tower: Tower | None = None
    quantization: Quantization | None = None
    checkpoint_bytes: int | None = None  # of the decoder's tensors, where the files are at hand

    @property
    def traits(self) -> Architecture:
        """What the architecture's name fixes."""
        return ARCHITECTURES[self.architecture]

    @property
    def vision(self) -> VisionShape | None:
        """The tower, if it is one that this version's own engine runs."""
        return self.tower if isinstance(self.tower, VisionShape) else None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Return the bytes of keys and values that one token takes over all layers."""
        head = self.head_dim * bytes_per_element
        if self.kv_cache_dtype != "auto":
            head = self.head_dim + KV_SCALE_BYTES
        return 2 * self.num_layers * self.num_kv_heads * head


def read_model_facts(config: Mapping[str, Any], *, model_id: str) -> ModelShape:
    """Read the config.json of any model that can be planned, for our engine or for vLLM.

    Raises:
        UnsupportedModelError: an architecture or quantisation without known sizes.
        InvalidConfigError: a field is missing or cannot be right.
    """
    architecture = architecture_name(config, model_id)
    traits, text = ARCHITECTURES[architecture], text_config(config)
    hidden, heads = positive_int(text, "hidden_size"), positive_int(text, "num_attention_heads")
    kv_heads = positive_int(text, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidConfigError(
            "num_key_value_heads", kv_heads, f"does not divide num_attention_heads={heads}"
        )
    attention_bias = bool(text.get("attention_bias", False))
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    experts = _experts(text)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    return ModelShape(
        model_id=model_id,
        architecture=architecture,
        num_layers=positive_int(text, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=positive_int(text, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(text, traits.default_head_dim or hidden // heads),
        vocab_size=positive_int(text, "vocab_size"),
        tie_word_embeddings=bool(tied),
        max_len=_max_len(text),
        qk_norm=traits.qk_norm,
        qkv_bias=traits.qkv_bias or attention_bias,
        output_bias=traits.has_output_bias and attention_bias,
        mlp_bias=traits.has_mlp_bias and bool(text.get("mlp_bias", False)),
        dtype=_dtype(config, text),
        experts=experts,
        dense_layers=_dense_layers(text) if experts else frozenset(),
        tower=parse_tower(traits.tower, config, hidden) if traits.tower else None,
        quantization=parse_quantization(quantization),
    )


def merged_rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` (transformers 5) over `rope_scaling` over `rope_theta`.

    Raises:
        InvalidConfigError: one of them is no object.
    """
    merged: dict[str, Any] = {"rope_theta": text.get("rope_theta") or 10000.0}
    for key in ("rope_scaling", "rope_parameters"):
        part = text.get(key) or {}
        if not isinstance(part, Mapping):
            raise InvalidConfigError(key, part, "must be an object")
        merged.update(part)
    merged["rope_type"] = merged.get("rope_type") or merged.get("type") or "default"
    return merged


def architecture_name(config: Mapping[str, Any], model_id: str) -> str:
    """Return the architecture, if it is one that can be planned."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InvalidConfigError("architectures", names, "must be a list with one name")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"model {model_id!r} is a {names[0]}; this version runs {', '.join(runnable())} and "
            f"plans also {', '.join(name for name in ARCHITECTURES if name not in runnable())}"
        )
    return names[0]


def _experts(text: Mapping[str, Any]) -> Experts | None:
    if not (text.get("num_experts") or text.get("num_local_experts")):
        return None
    field = "num_experts" if text.get("num_experts") else "num_local_experts"
    count, chosen = positive_int(text, field), positive_int(text, "num_experts_per_tok", 8)
    if chosen > count:
        raise InvalidConfigError("num_experts_per_tok", chosen, f"is more than {field}={count}")
    return Experts(
        num_experts=count,
        experts_per_token=chosen,
        intermediate_size=positive_int(text, "moe_intermediate_size"),
    )


def _dense_layers(text: Mapping[str, Any]) -> frozenset[int]:
    """Return the layers without experts (transformers, modeling_qwen3_moe.py)."""
    step, listed = positive_int(text, "decoder_sparse_step", 1), text.get("mlp_only_layers") or []
    count = positive_int(text, "num_hidden_layers")
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise InvalidConfigError("mlp_only_layers", listed, "must be a list of layers' numbers")
    dense = frozenset(layer for layer in listed if 0 <= layer < count)
    if step == 1:
        return dense
    if count > _MOST_LISTED_LAYERS:
        raise InvalidConfigError("num_hidden_layers", count, "is too many for decoder_sparse_step")
    return dense | {layer for layer in range(count) if (layer + 1) % step}


def _head_dim(text: Mapping[str, Any], default: int) -> int:
    head_dim = positive_int(text, "head_dim", default)
    if head_dim % 2:
        raise InvalidConfigError("head_dim", head_dim, "must be even for rotary embeddings")
    return head_dim


def _max_len(text: Mapping[str, Any]) -> int:
    trained, rope = positive_int(text, "max_position_embeddings"), merged_rope(text)
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if rope["rope_type"] != "yarn" or not isinstance(original, int) or not factor:
        return trained
    return max(trained, int(original * float(factor)))


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> DTypeName:
    for source in (config, text):
        name = source.get("dtype") or source.get("torch_dtype")  # transformers 5 renamed it
        if name is not None:
            plain = str(name).removeprefix("torch.")
            if plain not in BYTES_PER_ELEMENT:
                raise UnsupportedModelError(
                    f"dtype {name!r} is not supported: {', '.join(BYTES_PER_ELEMENT)} are"
                )
            return cast(DTypeName, plain)
    return "float32"  # what transformers assumes
