"""The shape of Qwen3-VL-2B with random weights in bfloat16: what pictures are timed on.

The tower is whole; of the text model's layers, and of its vocabulary, there can be fewer, so that
three engines fit beside each other. Made by transformers; same small tokenizer as `tiny_vision`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.models import build_once, cache_dir
from tests.models.tiny import EOS, PAD, train_tokenizer
from tests.models.tiny_vision import CHAT_TEMPLATE, VISION_TOKENS

VERSION = 1  # in the folder's name: raise it when the weights change
NUM_LAYERS = 28

_TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 262_144, "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}  # fmt: skip
_TOWER: dict[str, Any] = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
    "out_hidden_size": 2048, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
# A picture of 1920×1080 is 2,040 tokens; what engines reserve for the largest stays small.
_PREPROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 65_536, "longest_edge": 2_200_000}, "patch_size": 16,
    "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip


def build_random_qwen3_vl(num_layers: int = NUM_LAYERS, out_dir: Path | None = None) -> Path:
    """Make the model in `out_dir` unless it is there (whole: 4.3 GB); return the folder."""
    default = cache_dir() / f"qwen3-vl-2b-{num_layers}-layers-random-v{VERSION}"
    return build_once(out_dir or default, partial(_make, num_layers))


def _make(num_layers: int, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    eos, pad = tokenizer.convert_tokens_to_ids([EOS, PAD])
    vocab_size = 151_936 if num_layers == NUM_LAYERS else 32_768
    text = {**_TEXT, "num_hidden_layers": num_layers, "vocab_size": vocab_size, "eos_token_id": eos}
    config = AutoConfig.for_model(
        "qwen3_vl", tie_word_embeddings=True, text_config=text, vision_config=_TOWER,
        vision_start_token_id=start, vision_end_token_id=end, image_token_id=image,
        video_token_id=video,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    generation = {"eos_token_id": [eos, pad], "pad_token_id": pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    image_part = {**_PREPROCESSOR, "image_processor_type": "Qwen2VLImageProcessorFast"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image_part, indent=2))
    video_part = {**_PREPROCESSOR, "video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video_part, indent=2))
