"""A tiny FP8 checkpoint as Qwen publishes them, and its twin in float32 with the same values.

Matrices of the decoder's layers are e4m3 with a scale for each block of 128 × 128; embeddings,
head, routers and norms are not, and config.json names no exceptions. Some sizes are no multiple of
128.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.models import build_once, cache_dir
from tests.models.tiny import write_model

if TYPE_CHECKING:
    import torch

VERSION = 1  # in the folders' names: raise it when the weights change
BLOCK = 128
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 160, "intermediate_size": 288,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": _QWEN3,
    "qwen3-moe": {
        **_QWEN3, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": BLOCK, "norm_topk_prob": True,
    },
}  # fmt: skip
_CONFIG = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}  # fmt: skip


def build_tiny_fp8(name: str = "qwen3") -> Path:
    """Make the FP8 checkpoint unless it is there; return the folder."""
    folder = cache_dir() / f"tiny-{name}-fp8-v{VERSION}"
    return build_once(folder, partial(_make, name, is_fp8=True))


def build_fp8_twin(name: str = "qwen3") -> Path:
    """Make the same model in float32 unless it is there; return the folder."""
    folder = cache_dir() / f"tiny-{name}-fp8-twin-v{VERSION}"
    return build_once(folder, partial(_make, name, is_fp8=False))


def _make(name: str, folder: Path, *, is_fp8: bool) -> None:
    from safetensors.torch import load_file, save_file

    write_model(_SHAPES[name], folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for key in [key for key in tensors if key.endswith("_proj.weight")]:
        values, scales = _quantise(tensors[key])
        if is_fp8:
            tensors[key], tensors[f"{key}_scale_inv"] = values, scales
        else:
            tensors[key] = values.float() * _spread(scales, values)
    save_file(tensors, file, metadata={"format": "pt"})
    if is_fp8:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = _CONFIG
        (folder / "config.json").write_text(json.dumps(config, indent=2))


def _quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return e4m3 values [rows, columns], and the factor of each block."""
    import torch

    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            block = weight[row * BLOCK :, column * BLOCK :][:BLOCK, :BLOCK]
            scales[row, column] = block.abs().max() / 448
    return (weight / _spread(scales, weight)).to(torch.float8_e4m3fn), scales


def _spread(scales: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    wide = scales.repeat_interleave(BLOCK, dim=0).repeat_interleave(BLOCK, dim=1)
    return wide[: like.shape[0], : like.shape[1]]
