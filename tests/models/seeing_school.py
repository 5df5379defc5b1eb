"""Lessons of `seeing_data` as inputs of the model: for transformers, and for its training.

Pictures go through our own processor, prompts through the checkpoint's chat template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from qwen_engine.planning.vision import VisionTokens
from qwen_engine.vision.images import Pixels, cut, resize
from qwen_engine.vision.media import Media
from qwen_engine.vision.positions import compute_positions
from qwen_engine.vision.prompt import MediaPrompt, expand, write_timestamps
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.sizes import image_size, video_size
from qwen_engine.vision.video import frame_times
from tests.models.seeing_data import RELATIONS, Lesson, relation_of
from tests.models.seeing_fast import NONE, Batch, what_is_seen
from tests.models.tiny_vision import VISION_TOKENS

EOS, PAD = "<|im_end|>", "<|endoftext|>"
PIXELS = 128 * 128  # that every picture is brought to
SETTINGS = ProcessorSettings(
    min_pixels=PIXELS // 2, max_pixels=PIXELS, video_min_pixels=PIXELS, video_max_pixels=6 * PIXELS,
    max_frames=6,
)  # fmt: skip
_HINTED = 8  # tokens before an answer: from the colour that is asked about
_SPECIAL = re.compile(r"(<\|\w+\|>)")
_AFTER_ASSISTANT = re.compile(r"(?<=<\|im_start\|>assistant\n)")


@dataclass(frozen=True)
class Example:
    """A conversation as the model takes it; `wanted` marks the ids that it is to say."""

    prompt: MediaPrompt
    wanted: list[bool]
    lesson: Lesson

    @property
    def question(self) -> list[int]:
        """The ids before the first answer."""
        return self.prompt.token_ids[: self.wanted.index(True)]


class School:
    """Turns lessons into the model's inputs."""

    def __init__(self, tokenizer: Any, *, shrink: Any = resize) -> None:
        self.tokenizer, self._shrink = tokenizer, shrink
        self._encode = lru_cache(maxsize=4096)(self._encode_piece)

    @cached_property
    def tokens(self) -> VisionTokens:
        start, end, image, video = self.tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
        return VisionTokens(image=image, video=video, start=start, end=end)

    def example(
        self, lesson: Lesson, *, num_more: int = 0, text_first: bool = False,
        fps: float = SETTINGS.fps, media: list[Media] | None = None,
    ) -> Example:  # fmt: skip
        """Return the lesson with so many more questions after the first.

        media: what its pictures have become, if not as they were drawn.
        """
        media = _media(lesson, fps, self._shrink) if media is None else media
        parts: list[dict[str, str]] = [{"type": item.kind} for item in media]
        parts.insert(0 if text_first else len(parts), {"type": "text", "text": lesson.question})
        turns = [(parts, lesson.answer), *lesson.more[:num_more]]
        messages = [
            {"role": role, "content": content}
            for turn in turns
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        text = write_timestamps(text, [item for item in media if item.kind == "video"])
        ids, wanted = self._ids_of(text)
        prompt = expand(ids, media, self.tokens)
        num_pads = len(prompt.token_ids) - len(ids)  # more, all before the first answer
        return Example(prompt, [False] * num_pads + wanted, lesson)

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return conversations of pictures of one size, padded on the right."""
        longest = max(len(example.prompt.token_ids) for example in examples)
        ids = torch.full((len(examples), longest), self.tokenizer.pad_token_id)
        labels, hints = torch.full_like(ids, NONE), torch.full_like(ids, NONE)
        positions = torch.zeros(3, *ids.shape, dtype=torch.long)
        visual = []
        for row, example in enumerate(examples):
            row_ids = torch.tensor(example.prompt.token_ids)
            ids[row, : len(row_ids)] = row_ids
            said = torch.tensor(example.wanted[1:])
            labels[row, : len(row_ids) - 1][said] = row_ids[1:][said]
            end = len(example.question)
            if example.lesson.topic == "relation" and example.prompt.spans[0].end < end - _HINTED:
                asked = RELATIONS.index(relation_of(*example.lesson.things))
                hints[row, end - _HINTED : end] = asked
            cut_positions, _ = compute_positions(len(row_ids), example.prompt.spans)
            positions[:, row, : len(row_ids)] = torch.tensor(np.asarray(cut_positions))
            visual += [torch.arange(s.start, s.end) + row * longest for s in example.prompt.spans]
        media = [item for example in examples for item in example.prompt.media]
        stills = [e.lesson for e in examples if len(e.lesson.pictures) == 1]
        pixels = torch.cat([_patches(item) for item in media]) if media else torch.empty(0)
        seen = torch.stack([what_is_seen(x, 4) for x in stills], 1) if stills else None
        return Batch(
            pixels,
            ids,
            labels,
            hints,
            positions,
            torch.cat(visual) if visual else torch.empty(0),
            seen,
        )

    def pictures(self, lessons: Sequence[Lesson]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the tower is to look at and what it is to name, of lessons with a picture."""
        pixels = [_patches(item) for x in lessons for item in _media(x, 1.0, self._shrink)]
        return torch.cat(pixels), torch.stack([what_is_seen(x, 4) for x in lessons], 1)

    def questions(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the inputs of transformers' `generate`, padded on the left."""
        rows = [example.question for example in examples]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, longest - len(row) :] = torch.tensor(row)
            mask[index, longest - len(row) :] = 1
        types = (ids == self.tokens.image).int() + 2 * (ids == self.tokens.video).int()
        inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": types}
        for kind, names in _INPUTS.items():
            items = [item for e in examples for item in e.prompt.media if item.kind == kind]
            if items:
                inputs[names[0]] = torch.cat([_pixels(item) for item in items])
                inputs[names[1]] = torch.tensor([item.grid for item in items])
        return inputs

    def _ids_of(self, text: str) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation, and which are the assistant's."""
        ids: list[int] = []
        wanted: list[bool] = []
        for index, turn in enumerate(_AFTER_ASSISTANT.split(text)):
            answer, end, rest = turn.partition(EOS) if index else ("", "", turn)
            for part, is_said in ((answer + end, True), (rest, False)):
                ids += (new := self._ids(part))
                wanted += [is_said] * len(new)
        return ids, wanted

    def _ids(self, text: str) -> list[int]:
        return [token for piece in _SPECIAL.split(text) if piece for token in self._encode(piece)]

    def _encode_piece(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


_INPUTS = {"image": ("pixel_values", "image_grid_thw"),
           "video": ("pixel_values_videos", "video_grid_thw")}  # fmt: skip


def _media(lesson: Lesson, fps: float, shrink: Any = resize) -> list[Media]:
    pictures, side = lesson.pictures, SETTINGS.patch_size
    if not pictures:
        return []
    if len(pictures) == 1:
        size = image_size(*pictures[0].size, SETTINGS)
        patches = cut([shrink(pictures[0], size)], SETTINGS)
        grid = (1, size[1] // side, size[0] // side)
        values = patches.data.cast("B")
        return [Media(kind="image", key=b"", grid=grid, merge_size=2, patches=values)]
    size = video_size(len(pictures), *pictures[0].size, SETTINGS)
    resized = [shrink(picture, size) for picture in pictures]
    resized += resized[-1:] * (len(resized) % 2)
    pairs = [cut(resized[n : n + 2], SETTINGS) for n in range(0, len(resized), 2)]
    times = frame_times([n / fps for n in range(len(pictures))], 2)
    grid = (len(pairs), size[1] // side, size[0] // side)
    values = np.concatenate(pairs).data.cast("B")
    return [Media(kind="video", key=b"", grid=grid, merge_size=2, patches=values, timestamps=times)]


def halve(picture: Image.Image, size: tuple[int, int]) -> Pixels:
    """Do nearly what `resize` does from a lesson's size to the model's, in a tenth of the time."""
    small = picture.reduce(2)
    return resize(small, size)


def _patches(item: Media) -> torch.Tensor:
    """Return [frames, patches, values], bytes."""
    values = torch.frombuffer(item.patches, dtype=torch.uint8)
    return values.view(item.grid[0], item.grid[1] * item.grid[2], -1)


def _pixels(item: Media) -> torch.Tensor:
    """Return [patches, values] as upstream's processor gives them."""
    values = _patches(item).flatten(0, 1)
    frames = 1 if item.kind == "image" else 2
    return (values.view(-1, 3, frames, 256).expand(-1, -1, 2, -1).flatten(1) / 255 - 0.5) / 0.5
