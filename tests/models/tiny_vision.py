"""Tiny random-weight Qwen3-VL models, one for each published layout, made by transformers.

What makes a layout its own is kept: head_dim and taps of the tower, experts or not, tied or not.
All else is small.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.models import build_once, cache_dir
from tests.models.tiny import EOS, PAD, train_tokenizer

if TYPE_CHECKING:
    import torch

VERSION = 2  # in the folder's name: raise it when weights or tokenizer change
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif part['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 4096, "longest_edge": 1_048_576},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

_ROPE = {
    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5],
    "mrope_interleaved": True,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 384,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 4096, "rope_parameters": _ROPE, "dtype": "float32",
}  # fmt: skip
_TOWER: dict[str, Any] = {"num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 2304}

VISION_SHAPES: dict[str, dict[str, Any]] = {
    "2b": {
        "model_type": "qwen3_vl", "tie_word_embeddings": True,
        "text_config": {**_TEXT, "model_type": "qwen3_vl_text"},
        "vision_config": {
            **_TOWER, "depth": 5, "hidden_size": 128, "intermediate_size": 192,
            "deepstack_visual_indexes": [1, 2, 3],
        },
    },
    "8b": {
        "model_type": "qwen3_vl", "tie_word_embeddings": False,
        "text_config": {**_TEXT, "model_type": "qwen3_vl_text"},
        "vision_config": {
            **_TOWER, "depth": 4, "hidden_size": 144, "intermediate_size": 269,
            "deepstack_visual_indexes": [0, 1, 3],
        },
    },
    "30b-a3b": {
        "model_type": "qwen3_vl_moe", "tie_word_embeddings": False,
        "text_config": {
            **_TEXT, "model_type": "qwen3_vl_moe_text", "num_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        },
        "vision_config": {
            **_TOWER, "depth": 4, "hidden_size": 144, "intermediate_size": 269,
            "deepstack_visual_indexes": [0, 1, 2],
        },
    },
}  # fmt: skip


def build_tiny_vision(name: str, out_dir: Path | None = None, *, seed: int = 0) -> Path:
    """Make the layout called `name` in `out_dir` unless it is there; return the folder."""
    default = cache_dir() / f"tiny-vision-{name}-v{VERSION}-seed{seed}"
    return build_once(out_dir or default, partial(_make, name, seed))


def _make(name: str, seed: int, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    ids = dict(zip(("vision_start_token_id", "vision_end_token_id", "image_token_id",
                    "video_token_id"), tokenizer.convert_tokens_to_ids(list(VISION_TOKENS)),
                   strict=True))  # fmt: skip
    eos, pad = tokenizer.convert_tokens_to_ids([EOS, PAD])
    shape = VISION_SHAPES[name]
    text = {**shape["text_config"], "eos_token_id": eos, "vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(**{**shape, "text_config": text}, **ids)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    _randomise(model, seed)
    model.save_pretrained(folder)
    generation = {"eos_token_id": [eos, pad], "pad_token_id": pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2))


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter so that activations keep their scale and logits spread out."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            elif "pos_embed" in name:
                parameter.copy_(0.3 * noise)
            else:
                # experts are [expert, out, in], the patch embedding a convolution
                fan_in = parameter[0].numel() if "visual" in name else parameter.shape[-1]
                parameter.copy_(noise * (1.0 if "visual" in name else 2.0) / math.sqrt(fan_in))
