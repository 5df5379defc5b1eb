"""Tiny random-weight models, made on the fly by transformers, with a tokenizer of their own.

Each shape stands for something the engine must get right (see `SHAPES`). They speak nonsense,
but deterministic nonsense: weights are scaled so that logits are well separated, and so greedy
ids can be compared one by one.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.models import build_once, cache_dir

if TYPE_CHECKING:
    import torch

VERSION = 1  # in the folder's name: raise it when weights or tokenizer change
VOCAB_SIZE = 384
EOS, PAD = "<|im_end|>", "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. A block is a fixed run of token slots.",
    "What is the capital of France? The capital of France is Paris.",
    "user assistant system: you are a helpful assistant, 0 1 2 3 4 5 6 7 8 9.",
)

_QWEN3: dict[str, Any] = {"model_type": "qwen3", "num_attention_heads": 4, "head_dim": 32}
_EXPERTS = {
    "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 48,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}

SHAPES: dict[str, dict[str, Any]] = {
    # head_dim 32 where hidden / heads is 16
    "qwen3-tied": {**_QWEN3, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3-untied": {**_QWEN3, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen3-3q-1kv": {
        **_QWEN3, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1,
    },
    "qwen3-6q-3kv": {
        **_QWEN3, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3,
        "head_dim": 16, "tie_word_embeddings": True,
    },
    "qwen3-bias-yarn": {
        **_QWEN3, "num_key_value_heads": 4, "attention_bias": True, "rope_parameters": _YARN_ROPE,
    },
    # biases on q, k and v; several shards with an index
    "qwen2-sharded": {
        "model_type": "qwen2", "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    # every layer with experts, as the 30B has them; each expert's matrices by themselves
    "qwen3-moe": {
        **_QWEN3, **_EXPERTS, "num_key_value_heads": 2, "norm_topk_prob": True,
    },
    # experts in the second layer only, of which the weights do not sum to 1
    "qwen3-moe-some": {
        **_QWEN3, **_EXPERTS, "num_key_value_heads": 2, "norm_topk_prob": False,
        "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3],
    },
    # a vision tower beside the text decoder, which alone is loaded
    "qwen3-vl-text": {
        "model_type": "qwen3_vl",
        "text_config": {
            **_QWEN3, "model_type": "qwen3_vl_text", "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48,
            "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
    },
    "llama": {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4},
    "llama-3q-1kv-llama3rope": {
        "model_type": "llama", "hidden_size": 96, "num_attention_heads": 3,
        "num_key_value_heads": 1, "tie_word_embeddings": True, "mlp_bias": True,
        "rope_parameters": _LLAMA3_ROPE,
    },
}  # fmt: skip


def build_tiny(name: str, out_dir: Path | None = None, *, seed: int = 0) -> Path:
    """Make the shape called `name` in `out_dir` unless it is there; return the folder."""
    default = cache_dir() / f"tiny-{name}-v{VERSION}-seed{seed}"
    return build_once(out_dir or default, partial(_make, name, seed))


def _make(name: str, seed: int, folder: Path) -> None:
    # Small shards, so that the index is read too.
    write_model(
        SHAPES[name], folder, seed=seed, shard="120KB" if name.endswith("sharded") else "1GB"
    )


def write_model(shape: dict[str, Any], folder: Path, *, seed: int = 0, shard: str = "1GB") -> None:
    """Write a random model of a shape such as those in SHAPES, and its tokenizer, to a folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(folder)
    eos, pad = tokenizer.convert_tokens_to_ids([EOS, PAD])
    text = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 1024,
        "eos_token_id": eos,
        "bos_token_id": None,
        "dtype": "float32",
    }
    if nested := shape.get("text_config"):
        config = AutoConfig.for_model(**{**shape, "text_config": {**text, **nested}})
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    else:
        config = AutoConfig.for_model(**{**text, **shape})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _randomise(model, seed)
    model.save_pretrained(folder, max_shard_size=shard)
    generation = {"eos_token_id": [eos, pad], "pad_token_id": pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter so that activations keep their scale and logits spread out.

    With the usual 0.02 every next token is nearly as likely as any other, and a difference in
    the last bit decides; with a spread like this one near ties are rare.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * 2.0 / math.sqrt(parameter.shape[-1]))


def train_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer: any text survives the round trip."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, "<|im_start|>", EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=CHAT_TEMPLATE
    )
