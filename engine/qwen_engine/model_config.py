"""What config.json says of a model, checked.

Owns `ModelConfig`: the planner's shape, and what only the torch model needs beside it. Read by
`llm_engine`, `worker` and the layers. Knows no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from qwen_engine import planning
from qwen_engine.errors import InvalidModelError, ModelNotFoundError, UnsupportedModelError
from qwen_engine.planning.fields import positive_int, text_config
from qwen_engine.planning.shape import ModelShape, merged_rope

RopeKind = Literal["default", "linear", "llama3", "yarn"]


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
    mrope_sections: tuple[int, ...] = ()  # frequencies of time, rows and columns; empty: of text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelShape):
    """The shape, and the facts that only computing needs."""

    rms_norm_eps: float
    rope: RopeConfig
    eos_token_ids: frozenset[int]
    renormalises_experts: bool = False  # the weights of a token's experts are made to sum to 1

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
        return parse_model_config(
            config, _read_json(generation) if generation.exists() else {}, model_id=path.name
        )


def parse_model_config(
    config: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    model_id: str = "",
) -> ModelConfig:
    """Check config.json and take from it what the torch model needs.

    Raises:
        InvalidModelError: a field is missing or cannot be.
        UnsupportedModelError: sound, but not for this engine.
    """
    try:
        shape = planning.parse_model_config(config, model_id=model_id)
        text = text_config(config)
        return ModelConfig(
            **{field.name: getattr(shape, field.name) for field in fields(shape)},
            rms_norm_eps=_float(text, "rms_norm_eps", 1e-6),
            rope=_parse_rope(text),
            eos_token_ids=_eos_token_ids(config, text, generation or {}),
            # Qwen3-VL does so whatever its config says (transformers, modeling_qwen3_vl_moe.py).
            renormalises_experts=shape.tower is not None or bool(text.get("norm_topk_prob", False)),
        )
    except planning.InvalidConfigError as error:
        raise InvalidModelError(error.field, error.value, error.problem) from error
    except planning.UnsupportedModelError as error:
        raise UnsupportedModelError(str(error)) from error


def _eos_token_ids(
    config: Mapping[str, Any], text: Mapping[str, Any], generation: Mapping[str, Any]
) -> frozenset[int]:
    # generation_config.json is the one that chat models keep right (<|im_end|> beside
    # <|endoftext|>); config.json speaks only where it is silent.
    sources = (generation, config, text)
    value = next((s["eos_token_id"] for s in sources if s.get("eos_token_id") is not None), None)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_int(token_id) for token_id in ids):
        raise InvalidModelError("eos_token_id", value, "must be an integer or a list of them")
    return frozenset(ids)


def _parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    merged = merged_rope(config)
    kind = merged["rope_type"]
    if merged.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor other than 1 is not supported")
    theta = _float(merged, "rope_theta")
    if kind == "default":
        return RopeConfig(theta=theta, mrope_sections=_mrope_sections(merged))
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=_float(merged, "factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=_float(merged, "factor"),
            original_max_len=positive_int(merged, "original_max_position_embeddings"),
            low_freq_factor=_float(merged, "low_freq_factor"),
            high_freq_factor=_float(merged, "high_freq_factor"),
        )
    if kind == "yarn":
        return _parse_yarn(config, merged, theta)
    raise UnsupportedModelError(
        f"rope_type {kind!r} is not supported: default, linear, llama3 and yarn are"
    )


def _mrope_sections(merged: Mapping[str, Any]) -> tuple[int, ...]:
    sections = merged.get("mrope_section")
    if sections is None:
        return ()
    is_list = isinstance(sections, list) and all(_is_int(size) for size in sections)
    if not is_list or len(sections) != 3 or min(sections) < 0:
        raise InvalidModelError("mrope_section", sections, "must be a list of three counts")
    if not merged.get("mrope_interleaved", True):
        raise UnsupportedModelError("mrope_interleaved=false is not supported")
    return tuple(sections)


def _parse_yarn(config: Mapping[str, Any], merged: Mapping[str, Any], theta: float) -> RopeConfig:
    # After transformers 5.24 modeling_rope_utils.py, _compute_yarn_parameters.
    original = positive_int(merged, "original_max_position_embeddings")
    longest = positive_int(config, "max_position_embeddings")
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


def _float(source: Mapping[str, Any], field: str, default: float | None = None) -> float:
    """Return a positive number field; `null` counts as absent."""
    value = source.get(field)
    value = default if value is None else value
    if value is None:
        raise InvalidModelError(field, None, "is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidModelError(field, value, "must be a number above 0")
    return float(value)
