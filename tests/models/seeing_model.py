"""The shape of the tiny model that sees, its tokenizer, and the files of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.models.seeing_data import (
    COLOURS,
    COUNT,
    DESCRIBE,
    DIGIT,
    GREETINGS,
    ORDER,
    RELATIONS,
    SHAPES,
    WELCOME,
)
from tests.models.seeing_school import EOS, PAD, SETTINGS, School
from tests.models.tiny_vision import CHAT_TEMPLATE, VISION_TOKENS

_TEXT = {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 2048, "tie_word_embeddings": True, "bos_token_id": None,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}  # fmt: skip
_TOWER = {
    "depth": 4, "hidden_size": 112, "num_heads": 4, "intermediate_size": 256,
    "out_hidden_size": 128, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2],
}  # fmt: skip


def new_model(school: School) -> Any:
    """Return transformers' Qwen3-VL with random weights."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokens, tokenizer = school.tokens, school.tokenizer
    config = Qwen3VLConfig(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id},
        vision_config=_TOWER, tie_word_embeddings=True, image_token_id=tokens.image,
        video_token_id=tokens.video, vision_start_token_id=tokens.start,
        vision_end_token_id=tokens.end,
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config)


def new_tokenizer() -> Any:
    """Return a byte-level tokenizer that has every word of the lessons as few tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = [*COLOURS, *SHAPES, *RELATIONS, *(f"{n}." for n in range(10))]
    corpus = [f" {word}" for word in words] + [word.capitalize() for word in words]
    corpus += [*DESCRIBE, *COUNT, *DIGIT, *ORDER, *GREETINGS, WELCOME, "First red, then blue."]
    corpus += ["Where is the", "What colour is the", "What shape is", "user\n", "assistant\n", "A "]
    corpus += [" seconds>", "<0.2 seconds>", "<1.2 seconds>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, show_progress=False,
        special_tokens=[PAD, "<|im_start|>", EOS, *VISION_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )  # fmt: skip


def save(model: Any, school: School, folder: Path) -> None:
    """Write the checkpoint in bfloat16, with the settings of its processors."""
    folder.mkdir(exist_ok=True)
    school.tokenizer.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    eos, pad = school.tokenizer.convert_tokens_to_ids([EOS, PAD])
    files = {
        "generation_config.json": {"eos_token_id": [eos, pad], "pad_token_id": pad,
                                   "do_sample": False},
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16,
            "temporal_patch_size": 2, "merge_size": 2, "image_mean": list(SETTINGS.mean),
            "image_std": list(SETTINGS.std),
            "size": {"shortest_edge": SETTINGS.min_pixels, "longest_edge": SETTINGS.max_pixels},
        },
        "video_preprocessor_config.json": {
            "fps": SETTINGS.fps, "min_frames": SETTINGS.min_frames,
            "max_frames": SETTINGS.max_frames,
            "size": {"shortest_edge": SETTINGS.video_min_pixels,
                     "longest_edge": SETTINGS.video_max_pixels},
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
