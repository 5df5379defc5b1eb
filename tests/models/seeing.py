"""A tiny Qwen3-VL that really sees, trained on `seeing_data` and kept in `seeing/`.

Every part of the architecture carries weight: DeepStack, M-RoPE and the times of video frames. So
a picture that lands in the wrong place gives a wrong word. `python -m tests.models.seeing train`
makes the folder anew (on two cores in minutes; it goes on where it was stopped), `examine` says
how many answers are right by transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.models import cache_dir
from tests.models.seeing_data import (
    COLOURS,
    COUNT,
    DESCRIBE,
    DIGIT,
    GREETINGS,
    ORDER,
    RELATIONS,
    SHAPES,
    TOPICS,
    WELCOME,
    make_lesson,
)
from tests.models.seeing_school import EOS, PAD, SETTINGS, Example, School
from tests.models.tiny_vision import CHAT_TEMPLATE, VISION_TOKENS

FOLDER = Path(__file__).with_name("seeing")
SEED, STEPS, BATCH, RATE = 0, 4000, 32, 2e-3
VIDEO_EVERY = 12  # steps
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


def train(*, steps: int, minutes: float) -> bool:
    """Go on with the training for so many minutes; return whether it is complete."""
    torch.manual_seed(SEED)
    school = School(_tokenizer())
    model = _model(school)
    _hasten(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    checkpoint, first = cache_dir() / "seeing-training.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    deadline, losses = time.monotonic() + 60 * minutes, []
    for step in range(first, steps):
        batch = school.batch(_lessons(school, step), with_answers=True)
        losses.append(_learn(model, optimizer, batch, _rate(step, steps)))
        if step % 100 == 99:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}", flush=True)
        if time.monotonic() > deadline or step + 1 == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                     "step": step + 1}  # fmt: skip
            torch.save(state, checkpoint)
            if step + 1 < steps:
                return False
    _save(model, school)
    return True


def examine(folder: Path, *, number: int) -> dict[str, float]:
    """Return by topic the share of right answers on pictures never trained on."""
    from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

    school = School(PreTrainedTokenizerFast.from_pretrained(folder))
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    return {topic: _share_right(model, school, topic, number) for topic in TOPICS}


@torch.inference_mode()
def _share_right(model: Any, school: School, topic: str, number: int) -> float:
    right = 0
    for first in range(0, number, BATCH):
        seeds = range(first, min(first + BATCH, number))
        lessons = [make_lesson(2 * seed + 1, topic) for seed in seeds]
        batch = school.batch([school.example(lesson) for lesson in lessons], with_answers=False)
        ids = model.generate(**batch["inputs"], max_new_tokens=16, do_sample=False)
        answers = school.tokenizer.batch_decode(
            ids[:, batch["labels"].shape[1] :], skip_special_tokens=True
        )
        right += sum(a == lesson.answer for a, lesson in zip(answers, lessons, strict=True))
    return right / number


def _lessons(school: School, step: int) -> list[Example]:
    """Return those of a step; videos have steps of their own, for their prompts are longer."""
    seeds = range(2 * step * BATCH, 2 * (step + 1) * BATCH, 2)
    is_video = step % VIDEO_EVERY == 0
    lessons = (make_lesson(seed, "order" if is_video else None) for seed in seeds)
    return [school.example(lesson) for lesson in lessons]


def _hasten(model: Any) -> None:
    """Compute the same in a third of the time: frames of one size attend together."""
    from transformers.models.qwen3_vl import modeling_qwen3_vl as upstream

    def embed(patch: Any, pixels: torch.Tensor) -> torch.Tensor:
        return functional.linear(pixels, patch.proj.weight.flatten(1), patch.proj.bias)

    def attend(
        attention: Any, hidden_states: torch.Tensor, *, cu_seqlens: torch.Tensor,
        position_embeddings: Any, **_: Any,
    ) -> torch.Tensor:  # fmt: skip
        heads = attention.qkv(hidden_states).view(len(hidden_states), 3, attention.num_heads, -1)
        query, key, value = heads.unbind(1)
        query, key = upstream.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        parts, start = [], 0
        for size, same in itertools.groupby(cu_seqlens.diff().tolist()):
            end = start + size * len(list(same))
            frames = (x[start:end].unflatten(0, (-1, size)).transpose(1, 2)
                      for x in (query, key, value))  # fmt: skip
            seen = functional.scaled_dot_product_attention(*frames)
            parts.append(seen.transpose(1, 2).flatten(2).flatten(0, 1))
            start = end
        projected: torch.Tensor = attention.proj(torch.cat(parts))
        return projected

    model.model.visual.patch_embed.forward = MethodType(embed, model.model.visual.patch_embed)
    for block in model.model.visual.blocks:
        block.attn.forward = MethodType(attend, block.attn)


def _learn(
    model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, Any], rate: float
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits = model(**batch["inputs"]).logits
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _rate(step: int, steps: int) -> float:
    """Return the learning rate: up in 200 steps, then down on a cosine."""
    warm = min(1.0, (step + 1) / 200)
    return RATE * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)


def _tokenizer() -> Any:
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


def _model(school: School) -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokens, tokenizer = school.tokens, school.tokenizer
    config = Qwen3VLConfig(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id},
        vision_config=_TOWER, tie_word_embeddings=True, image_token_id=tokens.image,
        video_token_id=tokens.video, vision_start_token_id=tokens.start,
        vision_end_token_id=tokens.end,
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config)


def _save(model: Any, school: School) -> None:
    FOLDER.mkdir(exist_ok=True)
    school.tokenizer.save_pretrained(FOLDER)
    model.to(torch.bfloat16).save_pretrained(FOLDER)
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
        (FOLDER / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.seeing", description=__doc__)
    parser.add_argument("what", choices=("train", "examine"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--number", type=int, default=200, help="of questions on each topic")
    arguments = parser.parse_args()
    if arguments.what == "train" and not train(steps=arguments.steps, minutes=arguments.minutes):
        print("not complete: run it again to go on")
        return
    for topic, share in examine(FOLDER, number=arguments.number).items():
        print(f"{topic}: {share:.1%}")


if __name__ == "__main__":
    main()
