"""What this version's own engine runs, of all that can be planned; and why not the rest.

Called where a model is to be served here: by the engine's `model_config`, the catalogue, `settle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_engine.planning.architectures import ARCHITECTURES, runnable
from qwen_engine.planning.errors import UnsupportedModelError
from qwen_engine.planning.fields import positive_int, text_config
from qwen_engine.planning.shape import ModelShape, architecture_name, read_model_facts


def parse_model_config(config: Mapping[str, Any], *, model_id: str) -> ModelShape:
    """Read the config.json of a model that this version's own engine runs.

    Raises:
        UnsupportedModelError: architecture, quantisation or feature this version cannot run.
        InvalidConfigError: a field is missing or cannot be right.
    """
    refuse_what_does_not_run(config, model_id)
    return read_model_facts(config, model_id=model_id)


def refuse_what_does_not_run(config: Mapping[str, Any], model_id: str) -> None:
    """Check a config.json against what this version's own engine runs.

    Raises:
        UnsupportedModelError: architecture, quantisation or feature it lacks.
        InvalidConfigError: a field that cannot be right.
    """
    architecture, text = architecture_name(config, model_id), text_config(config)
    if not ARCHITECTURES[architecture].runs_here:
        raise UnsupportedModelError(
            f"model {model_id!r} is a {architecture}, which vLLM can serve; this version's own "
            f"engine runs {', '.join(runnable())}"
        )
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


def runs_here(model: ModelShape) -> bool:
    """Say whether this version's own engine runs a model: it widens FP8 blocks at load."""
    packing = model.quantization
    is_widened = packing is None or (packing.method == "fp8" and packing.block == (128, 128))
    return model.traits.runs_here and is_widened
