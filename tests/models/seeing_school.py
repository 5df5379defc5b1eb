"""Lessons of `seeing_data` as the inputs of transformers' Qwen3-VL, made by our own processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from qwen_engine.planning.vision import VisionTokens
from qwen_engine.vision.images import cut, resize
from qwen_engine.vision.media import Media
from qwen_engine.vision.prompt import expand, write_timestamps
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.sizes import image_size, video_size
from qwen_engine.vision.video import frame_times
from tests.models.seeing_data import Lesson
from tests.models.tiny_vision import VISION_TOKENS

EOS, PAD = "<|im_end|>", "<|endoftext|>"
MERGED = 128 * 128  # pixels that every picture is brought to

SETTINGS = ProcessorSettings(
    min_pixels=MERGED // 2, max_pixels=MERGED, video_min_pixels=MERGED, video_max_pixels=4 * MERGED,
    max_frames=16,
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A lesson as the model takes it."""

    token_ids: list[int]
    num_prompt_tokens: int
    media: tuple[Media, ...]


class School:
    """Turns lessons into the model's inputs."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def tokens(self) -> VisionTokens:
        start, end, image, video = self.tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
        return VisionTokens(image=image, video=video, start=start, end=end)

    def example(self, lesson: Lesson) -> Example:
        media = _media(lesson)
        parts: list[dict[str, str]] = [{"type": item.kind} for item in media]
        parts.append({"type": "text", "text": lesson.question})
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        text = write_timestamps(text, [item for item in media if item.kind == "video"])
        prompt = expand(self._encode(text), media, self.tokens)
        answer = self._encode(lesson.answer + EOS)
        return Example(prompt.token_ids + answer, len(prompt.token_ids), prompt.media)

    def batch(self, examples: Sequence[Example], *, with_answers: bool) -> dict[str, Any]:
        """Pad on the right, or on the left where answers are to be generated."""
        rows = [
            example.token_ids if with_answers else example.token_ids[: example.num_prompt_tokens]
            for example in examples
        ]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
        for index, (row, example) in enumerate(zip(rows, examples, strict=True)):
            place = slice(0, len(row)) if with_answers else slice(longest - len(row), longest)
            ids[index, place] = torch.tensor(row)
            mask[index, place] = 1
            if with_answers:
                answer = row[example.num_prompt_tokens :]
                labels[index, example.num_prompt_tokens : len(row)] = torch.tensor(answer)
        types = (ids == self.tokens.image).int() + 2 * (ids == self.tokens.video).int()
        inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": types}
        for kind, names in _INPUTS.items():
            items = [item for e in examples for item in e.media if item.kind == kind]
            if items:
                inputs[names[0]] = torch.cat([_pixels(item) for item in items])
                inputs[names[1]] = torch.tensor([item.grid for item in items])
        return {"inputs": inputs, "labels": labels}

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


_INPUTS = {"image": ("pixel_values", "image_grid_thw"),
           "video": ("pixel_values_videos", "video_grid_thw")}  # fmt: skip


def _media(lesson: Lesson) -> list[Media]:
    pictures, side = lesson.pictures, SETTINGS.patch_size
    if not pictures:
        return []
    if len(pictures) == 1:
        size = image_size(*pictures[0].size, SETTINGS)
        patches = cut([resize(pictures[0], size)], SETTINGS)
        grid = (1, size[1] // side, size[0] // side)
        values = patches.data.cast("B")
        return [Media(kind="image", key=b"", grid=grid, merge_size=2, patches=values)]
    size = video_size(len(pictures), *pictures[0].size, SETTINGS)
    resized = [resize(picture, size) for picture in pictures]
    pairs = [cut(resized[n : n + 2], SETTINGS) for n in range(0, len(resized), 2)]
    times = frame_times([n / SETTINGS.fps for n in range(len(pictures))], 2)
    grid = (len(pairs), size[1] // side, size[0] // side)
    values = np.concatenate(pairs).data.cast("B")
    return [Media(kind="video", key=b"", grid=grid, merge_size=2, patches=values, timestamps=times)]


def _pixels(item: Media) -> torch.Tensor:
    values = torch.frombuffer(item.patches, dtype=torch.uint8)
    frames = 1 if item.kind == "image" else 2
    return (values.view(-1, 3, frames, 256).expand(-1, -1, 2, -1).flatten(1) / 255 - 0.5) / 0.5
