"""Model facts: what config.json says of a decoder's dimensions, checked.

The one reader of these fields: the planner uses it without the model on disk, the engine builds
its `ModelConfig` on it. Knows nothing about devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from qwen_engine.planning.errors import InvalidConfigError, UnsupportedModelError

DTypeName = Literal["float32", "bfloat16", "float16"]
BYTES_PER_ELEMENT: Mapping[DTypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
KVCacheDType = Literal["auto", "int8", "fp8"]
QuantizationName = Literal["none", "int8"]
INT8_SCALE_BYTES = 4  # of each row of a matrix in int8
KV_SCALE_BYTES = 2  # of each token's head in an 8-bit KV cache


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture's name fixes beyond its config."""

    qk_norm: bool = False
    qkv_bias: bool = False
    has_output_bias: bool = True  # if attention_bias is set
    has_mlp_bias: bool = False  # if mlp_bias is set
    default_head_dim: int | None = None  # instead of hidden size / heads
    prefix: str = "model."  # of the text decoder's names in a checkpoint
    skipped_prefix: str | None = None  # of a vision tower, which this version does not load


ARCHITECTURES = {
    "Qwen3ForCausalLM": Architecture(qk_norm=True, default_head_dim=128),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, has_output_bias=False),
    "LlamaForCausalLM": Architecture(has_mlp_bias=True),
    "Qwen3VLForConditionalGeneration": Architecture(
        qk_norm=True,
        default_head_dim=128,
        prefix="model.language_model.",
        skipped_prefix="model.visual.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder's dimensions.

    Attributes:
        head_dim: independent of hidden_size / num_heads.
        max_len: tokens the positions are good for; YaRN stretches them beyond those trained.
        int8_weights: the engine makes the matrices of all products int8 while it loads them.
        kv_cache_dtype: how the engine keeps keys and values, as demanded; auto: in its own type.
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

    @property
    def traits(self) -> Architecture:
        """What the architecture's name fixes."""
        return ARCHITECTURES[self.architecture]

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


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text decoder's part of a config.json: all of it, but in vision models."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise InvalidConfigError("text_config", text, "must be an object")
    return text


def parse_model_config(config: Mapping[str, Any], *, model_id: str) -> ModelShape:
    """Read a Hugging Face config.json.

    Raises:
        UnsupportedModelError: architecture, quantisation or feature this version cannot run.
        InvalidConfigError: a field is missing or cannot be right.
    """
    architecture = _architecture(config, model_id)
    traits, text = ARCHITECTURES[architecture], text_config(config)
    _refuse_unsupported(config, text, model_id)
    hidden, heads = positive_int(text, "hidden_size"), positive_int(text, "num_attention_heads")
    kv_heads = positive_int(text, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidConfigError(
            "num_key_value_heads", kv_heads, f"does not divide num_attention_heads={heads}"
        )
    attention_bias = bool(text.get("attention_bias", False))
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
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
    )


def positive_int(source: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """Return a positive integer field; `null` counts as absent, as it does in transformers.

    Raises:
        InvalidConfigError: absent without a default, or no positive integer.
    """
    value = source.get(field)
    value = default if value is None else value
    if value is None:
        raise InvalidConfigError(field, None, "is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise InvalidConfigError(field, value, "must be a positive integer below 2³¹")
    return value


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


def _architecture(config: Mapping[str, Any], model_id: str) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InvalidConfigError("architectures", names, "must be a list with one name")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"model {model_id!r} is a {names[0]}; this version runs {', '.join(ARCHITECTURES)}"
        )
    return names[0]


def _refuse_unsupported(config: Mapping[str, Any], text: Mapping[str, Any], model_id: str) -> None:
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if quantization and not is_block_fp8(quantization):
        is_object = isinstance(quantization, Mapping)
        method = quantization.get("quant_method", "unnamed") if is_object else quantization
        raise UnsupportedModelError(
            f"model {model_id!r} is quantised (quantization_config: {method}); this version runs "
            "16- and 32-bit checkpoints and FP8 in blocks of 128 × 128: use one of those (with "
            "--quantization int8 for 8-bit weights)"
        )
    if text.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"model {model_id!r} has hidden_act={text['hidden_act']!r}; only 'silu' is supported"
        )
    if _has_sliding_window(text):
        raise UnsupportedModelError(
            f"model {model_id!r} has sliding-window attention, which is not supported: if the "
            "window is as long as the context you serve, set use_sliding_window to false (and "
            "layer_types to full_attention)"
        )
    if text.get("pretraining_tp", 1) not in (None, 1):
        raise UnsupportedModelError("pretraining_tp other than 1 is not supported")


def is_block_fp8(quantization: object) -> bool:
    """Say whether a quantization_config means e4m3 with scales of 128 × 128, as Qwen publishes."""
    return (
        isinstance(quantization, Mapping)
        and quantization.get("quant_method") == "fp8"
        and quantization.get("fmt", "e4m3") == "e4m3"
        and quantization.get("weight_block_size") == [128, 128]
    )


def _has_sliding_window(text: Mapping[str, Any]) -> bool:
    if text.get("layer_types") is not None:
        return "sliding_attention" in text["layer_types"]
    if not (text.get("use_sliding_window") and text.get("sliding_window")):
        return False
    # Only layers from max_window_layers on have the window (transformers, configuration_qwen3.py).
    return positive_int(text, "max_window_layers", 28) < positive_int(text, "num_hidden_layers")


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
