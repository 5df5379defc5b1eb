"""The shape of Qwen3-0.6B with random weights in bfloat16: what speed is measured on.

The shape comes from the planner's catalogue, the names and sizes of the parameters from the
planner's own list, so nothing is downloaded. Same scale of weights as `tiny`, same small
tokenizer: benchmarks send token ids, and ids beyond its vocabulary decode to nothing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_engine.planning import ModelShape, find_model
from qwen_engine.planning.weights import parameter_shapes
from tests.models import build_once, cache_dir
from tests.models.tiny import EOS, PAD, train_tokenizer

if TYPE_CHECKING:
    import torch

MODEL_ID = "Qwen/Qwen3-0.6B"
NAME = "qwen3-0.6b-random"
VERSION = 1  # in the folder's name: raise it when the weights change


def build_random_qwen3(out_dir: Path | None = None) -> Path:
    """Make the model in `out_dir` unless it is there (about 20 s, 1.2 GB); return the folder."""
    return build_once(out_dir or cache_dir() / f"{NAME}-v{VERSION}", _make)


def _make(folder: Path) -> None:
    from safetensors.torch import save_file

    shape = find_model(MODEL_ID)
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(folder)
    eos, pad = tokenizer.convert_tokens_to_ids([EOS, PAD])
    (folder / "config.json").write_text(json.dumps(_config(shape, eos), indent=2))
    generation = {"eos_token_id": [eos, pad], "pad_token_id": pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    tensors = _random_tensors(shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _config(shape: ModelShape, eos: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tie_word_embeddings,
        "attention_bias": shape.qkv_bias,
        "dtype": "bfloat16",
        "eos_token_id": eos,
    }


def _random_tensors(shape: ModelShape) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, size in parameter_shapes(shape):
        noise = torch.randn(size, generator=generator)
        if len(size) == 1:
            noise = 1 + 0.1 * noise
        elif "embed_tokens" not in name:
            noise *= 2.0 / math.sqrt(size[1])
        tensors[name] = noise.to(torch.bfloat16)
    return tensors
