"""A tiny Qwen3-VL that really sees, trained on `seeing_data` and kept in `seeing/`.

Every part of the architecture carries weight: DeepStack, M-RoPE and the times of video frames. So
a picture that lands in the wrong place gives a wrong word. `python -m tests.models.seeing train`
makes the folder anew (in minutes; it goes on where it was stopped), `examine` says how many
answers are right by transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from qwen_engine.vision.media import Media
from tests.models.seeing_data import TOPICS, Lesson, make_lesson
from tests.models.seeing_folder import FOLDER
from tests.models.seeing_school import School
from tests.models.seeing_training import STEPS, train

_TOGETHER = 25  # questions


class Transformers:
    """The checkpoint as transformers runs it, in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

        self._school = School(PreTrainedTokenizerFast.from_pretrained(folder))
        self._model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()

    @torch.inference_mode()
    def answer(self, lessons: Sequence[Lesson], media: Sequence[Media] | None = None) -> list[str]:
        """Return the greedy answers; `media` are the lessons' videos where a file changed them."""
        given = [[item] for item in media] if media else [None] * len(lessons)
        examples = [self._school.example(x, media=m) for x, m in zip(lessons, given, strict=True)]
        inputs = self._school.questions(examples)
        ids = self._model.generate(**inputs, max_new_tokens=24, do_sample=False)
        said = ids[:, inputs["input_ids"].shape[1] :]
        answers: list[str] = self._school.tokenizer.batch_decode(said, skip_special_tokens=True)
        return answers


def examine(folder: Path, *, number: int) -> dict[str, float]:
    """Return by topic the share of right answers on pictures never trained on."""
    model = Transformers(folder)
    return {topic: _share_right(model, topic, number) for topic in TOPICS}


def _share_right(model: Transformers, topic: str, number: int) -> float:
    right = 0
    for first in range(0, number, _TOGETHER):
        seeds = range(first, min(first + _TOGETHER, number))
        lessons = [make_lesson(2 * seed + 1, topic) for seed in seeds]
        answers = model.answer(lessons)
        right += sum(a == lesson.answer for a, lesson in zip(answers, lessons, strict=True))
    return right / number


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.seeing", description=__doc__)
    parser.add_argument("what", choices=("train", "examine"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--number", type=int, default=200, help="of questions on each topic")
    arguments = parser.parse_args()
    if arguments.what == "train" and not train(
        FOLDER, steps=arguments.steps, minutes=arguments.minutes
    ):
        print("not complete: run it again to go on")
        return
    for topic, share in examine(FOLDER, number=arguments.number).items():
        print(f"{topic}: {share:.1%}")


if __name__ == "__main__":
    main()
