"""Model facts: what config.json says, in the planner's words.

Called with any Hugging Face config of a supported architecture; the catalogue holds the published
ones in the same form. Knows nothing about devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning.errors import InvalidConfigError, UnsupportedModelError

BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture's name fixes beyond its config."""

    qk_norm: bool = False
    qkv_bias: bool = False
    prefix: str = "model."  # of the text decoder's names in a checkpoint
    text_only: bool = False  # has a vision tower, which this version does not load


ARCHITECTURES = {
    "Qwen3ForCausalLM": Architecture(qk_norm=True),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True),
    "LlamaForCausalLM": Architecture(),
    "Qwen3VLForConditionalGeneration": Architecture(
        qk_norm=True, prefix="model.language_model.", text_only=True
    ),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder's dimensions."""

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
    max_position_embeddings: int
    attention_bias: bool
    mlp_bias: bool
    dtype: str

    @property
    def traits(self) -> Architecture:
        """What the architecture's name fixes."""
        return ARCHITECTURES[self.architecture]

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Return the bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element


def parse_model_config(config: Mapping[str, Any], *, model_id: str) -> ModelShape:
    """Read a Hugging Face config.json.

    Raises:
        UnsupportedModelError: architecture, quantisation or experts this version cannot run.
        InvalidConfigError: a field is missing or cannot be right.
    """
    architecture = _architecture(config, model_id)
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise InvalidConfigError("text_config", "must be an object")
    _refuse_quantised(config, model_id)
    hidden, heads = _positive(text, "hidden_size"), _positive(text, "num_attention_heads")
    kv_heads = _positive(text, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InvalidConfigError(
            "num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}"
        )
    if text.get("head_dim") is None and hidden % heads:
        raise InvalidConfigError("head_dim", "missing, and hidden_size is no multiple of the heads")
    return ModelShape(
        model_id=model_id,
        architecture=architecture,
        num_layers=_positive(text, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=_positive(text, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_positive(text, "head_dim", default=hidden // heads),
        vocab_size=_positive(text, "vocab_size"),
        tie_word_embeddings=bool(
            config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
        ),
        max_position_embeddings=_positive(text, "max_position_embeddings", default=2048),
        attention_bias=bool(text.get("attention_bias", False)),
        mlp_bias=bool(text.get("mlp_bias", False)),
        dtype=_dtype(config, text),
    )


def _architecture(config: Mapping[str, Any], model_id: str) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise InvalidConfigError("architectures", "missing; expected e.g. ['Qwen3ForCausalLM']")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"model {model_id!r} is a {names[0]}; this version runs {', '.join(ARCHITECTURES)}"
        )
    return str(names[0])


def _refuse_quantised(config: Mapping[str, Any], model_id: str) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise UnsupportedModelError(
            f"model {model_id!r} is quantised ({method}); this version runs 16- and 32-bit "
            "checkpoints: use the unquantised one"
        )


def _positive(config: Mapping[str, Any], field: str, *, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        raise InvalidConfigError(field, "missing")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidConfigError(field, f"{value!r} is not a positive whole number")
    return value


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for source in (config, text):
        for key in ("dtype", "torch_dtype"):  # transformers 5 renamed it
            value = source.get(key)
            if value is not None:
                name = str(value).removeprefix("torch.")
                if name not in BYTES_PER_ELEMENT:
                    raise InvalidConfigError(key, f"{value!r} is not one of {_known_dtypes()}")
                return name
    return "float32"  # what transformers assumes


def _known_dtypes() -> str:
    return ", ".join(BYTES_PER_ELEMENT)
