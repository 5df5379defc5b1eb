"""What config.json says of a model, checked.

Owns `ModelConfig`: the facts that the torch model needs. Read by `llm_engine`, `worker` and the
layers. Knows no torch. The planner reads config.json for itself, because it also speaks of
models that are not on disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from qwen_engine.errors import InvalidModelError, ModelNotFoundError, UnsupportedModelError

DTypeName = Literal["float32", "bfloat16", "float16"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]

DTYPES: tuple[DTypeName, ...] = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: the base frequency and how it is stretched."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_len: int = 0  # llama3, yarn: the length the model was first trained for
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: scales cos and sin
    truncate: bool = True  # yarn: round the ends of the ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The facts of config.json (and the stop ids of generation_config.json)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # independent of hidden_size / num_heads
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # Qwen3: RMSNorm over head_dim before the rotation
    dtype: DTypeName  # the checkpoint's
    eos_token_ids: frozenset[int]

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def max_len(self) -> int:
        """Tokens the positions are good for; yarn stretches them beyond those trained."""
        stretched = int(self.rope.original_max_len * self.rope.factor)
        return max(self.max_position_embeddings, stretched)

    @classmethod
    def from_folder(cls, path: Path) -> ModelConfig:
        """Read config.json and, if there is one, generation_config.json.

        Raises:
            ModelNotFoundError: no such folder, or no config.json in it.
            InvalidModelError: a field is missing or cannot be.
            UnsupportedModelError: sound, but not for this engine.
        """
        if not path.is_dir():
            raise ModelNotFoundError(path, "no such folder")
        config = _read_json(path / "config.json")
        generation = path / "generation_config.json"
        return parse_model_config(config, _read_json(generation) if generation.exists() else {})


def parse_model_config(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Check config.json and take from it what the torch model needs.

    Raises:
        InvalidModelError: a field is missing or cannot be.
        UnsupportedModelError: sound, but not for this engine.
    """
    architecture = _architecture(config)
    _refuse_unsupported(config)
    heads = _int(config, "num_attention_heads")
    hidden = _int(config, "hidden_size")
    kv_heads = _int(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidModelError(
            "num_key_value_heads", kv_heads, f"does not divide num_attention_heads={heads}"
        )
    attention_bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=_int(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_int(config, "intermediate_size"),
        num_layers=_int(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, architecture, hidden // heads),
        rms_norm_eps=_float(config, "rms_norm_eps", 1e-6),
        rope=_parse_rope(config),
        max_position_embeddings=_int(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=bool(config.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        dtype=_dtype(config),
        eos_token_ids=_eos_token_ids(config, generation or {}),
    )


ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM")


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InvalidModelError("architectures", names, "must be a list with one name")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {names[0]!r} is not supported: this engine runs "
            f"{', '.join(ARCHITECTURES)}"
        )
    return names[0]


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        is_object = isinstance(quantization, Mapping)
        method = quantization.get("quant_method", "unnamed") if is_object else quantization
        raise UnsupportedModelError(
            f"quantization_config ({method}) is not supported: use the unquantised checkpoint"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"hidden_act={config['hidden_act']!r} is not supported: only 'silu' is"
        )
    if _has_sliding_window(config):
        raise UnsupportedModelError(
            "sliding-window attention is not supported: if the window is as long as the context "
            "you serve, set use_sliding_window to false (and layer_types to full_attention)"
        )
    if config.get("pretraining_tp", 1) not in (None, 1):
        raise UnsupportedModelError("pretraining_tp other than 1 is not supported")


def _has_sliding_window(config: Mapping[str, Any]) -> bool:
    if config.get("layer_types") is not None:
        return "sliding_attention" in config["layer_types"]
    if not (config.get("use_sliding_window") and config.get("sliding_window")):
        return False
    # Only layers from max_window_layers on have the window (transformers, configuration_qwen3.py).
    return _int(config, "max_window_layers", 28) < _int(config, "num_hidden_layers")


def _head_dim(config: Mapping[str, Any], architecture: str, derived: int) -> int:
    # Qwen3's default is 128 whatever hidden / heads is; the others derive it.
    default = 128 if architecture == "Qwen3ForCausalLM" else derived
    head_dim = _int(config, "head_dim", default)
    if head_dim % 2:
        raise InvalidModelError("head_dim", head_dim, "must be even for rotary embeddings")
    return head_dim


def _dtype(config: Mapping[str, Any]) -> DTypeName:
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise UnsupportedModelError(f"dtype {name!r} is not supported: {', '.join(DTYPES)} are")
    return cast(DTypeName, name)


def _eos_token_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> frozenset[int]:
    # generation_config.json is the one that chat models keep right (<|im_end|> beside
    # <|endoftext|>); config.json speaks only where it is silent.
    value = generation.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_int(token_id) for token_id in ids):
        raise InvalidModelError("eos_token_id", value, "must be an integer or a list of them")
    return frozenset(ids)


def _parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), else `rope_theta` with `rope_scaling`."""
    merged: dict[str, Any] = {"rope_theta": config.get("rope_theta", 10000.0)}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key) or {}
        if not isinstance(part, Mapping):
            raise InvalidModelError(key, part, "must be an object")
        merged.update(part)
    kind = merged.get("rope_type") or merged.get("type") or "default"
    if merged.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    theta = _float(merged, "rope_theta")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=_float(merged, "factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=_float(merged, "factor"),
            original_max_len=_int(merged, "original_max_position_embeddings"),
            low_freq_factor=_float(merged, "low_freq_factor"),
            high_freq_factor=_float(merged, "high_freq_factor"),
        )
    if kind == "yarn":
        return _parse_yarn(config, merged, theta)
    raise UnsupportedModelError(
        f"rope_type {kind!r} is not supported: default, linear, llama3 and yarn are"
    )


def _parse_yarn(config: Mapping[str, Any], merged: Mapping[str, Any], theta: float) -> RopeConfig:
    # After transformers 5.24 modeling_rope_utils.py, _compute_yarn_parameters.
    original = _int(merged, "original_max_position_embeddings")
    longest = _int(config, "max_position_embeddings")
    factor = _float(merged, "factor", longest / original)
    if merged.get("mscale") and merged.get("mscale_all_dim"):
        raise UnsupportedModelError("yarn with mscale and mscale_all_dim is not supported")
    default_attention = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_len=original,
        beta_fast=_float(merged, "beta_fast", 32.0),
        beta_slow=_float(merged, "beta_slow", 1.0),
        attention_factor=_float(merged, "attention_factor", default_attention),
        truncate=bool(merged.get("truncate", True)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ModelNotFoundError(path.parent, f"there is no {path.name} in this folder")
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(path, f"cannot be read as JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelNotFoundError(path, "must hold a JSON object")
    return parsed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int(source: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """Return a positive integer field; `null` counts as absent, as it does in transformers."""
    value = source.get(field)
    value = default if value is None else value
    if value is None:
        raise InvalidModelError(field, None, "is missing")
    if not _is_int(value) or value < 1:
        raise InvalidModelError(field, value, "must be a positive integer")
    return int(value)


def _float(source: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """Return a positive number field; `null` counts as absent."""
    value = source.get(field)
    value = default if value is None else value
    if value is None:
        raise InvalidModelError(field, None, "is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidModelError(field, value, "must be a number above 0")
    return float(value)
