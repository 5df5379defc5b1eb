"""How the model of `seeing` learns: first the tower alone to see, then all of it to answer.

Seeded; what is asked follows what is still answered wrongly. It can be stopped at any time and
goes on from the last hundred of steps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.models import cache_dir
from tests.models.seeing_data import RELATIONS, Lesson, make_lesson
from tests.models.seeing_fast import NONE, Batch, Fast, Helper
from tests.models.seeing_model import new_model, new_tokenizer, save
from tests.models.seeing_school import Example, School, halve

SEED = 0
LOOKING, ANSWERING = 2600, 1200  # steps of the two parts
STEPS = LOOKING + ANSWERING
_RATE, _WARM = 4e-3, 50
_PICTURES, _TALKS, _CLIPS = 48, 32, 16  # in a step
_CLIPS_EVERY, _CLIPS_FROM = 6, 100  # steps
_CHECK_EVERY, _KEEP_EVERY, _CHECKED = 50, 100, 64
_STILL = ("one", "count", "digit", "relation")
_FPS = (1, 2, 2, 2, 3, 4, 5, 8)


def train(folder: Path, *, steps: int, minutes: float) -> bool:
    """Go on with the training for so many minutes; return whether it is complete."""
    pupil, deadline = Pupil.resumed(), time.monotonic() + 60 * minutes
    while pupil.step < steps:
        if time.monotonic() > deadline:
            pupil.keep()
            return False
        if pupil.step < LOOKING:
            pupil.look(pupil.step)
        else:
            pupil.answer(pupil.step - LOOKING)
        pupil.step += 1
        if pupil.step % _CHECK_EVERY == 0:
            pupil.check()
        if pupil.step % _KEEP_EVERY == 0:
            pupil.keep()
    save(pupil.model, pupil.school, folder)
    return True


class Pupil:
    """The model in training, with its optimizers and what it is to be asked next."""

    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.school = School(new_tokenizer(), shrink=halve)
        self.model = new_model(self.school).train()
        self.model.set_attn_implementation("eager")
        self.fast = Fast(self.model, side=8)
        self.helper = Helper(self.model.config.text_config.hidden_size)
        self.reader = nn.Linear(self.model.config.text_config.hidden_size, len(RELATIONS))
        self.optimizers = _optimizers(self.model, self.helper)
        self.optimizers.append(torch.optim.AdamW(self.reader.parameters(), lr=_RATE))
        self.weights, self.step, self._losses = dict.fromkeys(_STILL, 1.0), 0, [0.0]

    @classmethod
    def resumed(cls) -> Pupil:
        """Return the pupil as it was kept, or a new one."""
        pupil = cls()
        if _kept().exists():
            state = torch.load(_kept())
            pupil.model.load_state_dict(state["model"])
            pupil.helper.load_state_dict(state["helper"])
            pupil.reader.load_state_dict(state["reader"])
            for optimizer, kept in zip(pupil.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
            pupil.weights, pupil.step = state["weights"], state["step"]
        return pupil

    def keep(self) -> None:
        """Write all that going on needs."""
        state = {
            "model": self.model.state_dict(), "helper": self.helper.state_dict(),
            "reader": self.reader.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "weights": self.weights, "step": self.step,
        }  # fmt: skip
        _kept().parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, _kept())

    def look(self, step: int) -> None:
        """Have the tower name what is where in pictures."""
        lessons = self._lessons(_PICTURES)
        pixels, seen = self.school.pictures(lessons)
        with torch.autocast("cpu", torch.bfloat16):
            tokens, _ = self.fast.tower(pixels)
        loss = self.helper(tokens, seen).sum()
        self._learn(0.5 * loss, _RATE * min(1.0, (step + 1) / _WARM, 1.3 - step / LOOKING))

    def answer(self, step: int) -> None:
        """Have the whole model answer, about pictures or, now and then, about videos."""
        is_video = step >= _CLIPS_FROM and step % _CLIPS_EVERY == 0
        batch = self.school.batch(self._clips() if is_video else self._talks())
        with torch.autocast("cpu", torch.bfloat16):
            loss, helped = self.fast.loss(batch, self.helper, self.reader)
        left = (ANSWERING - step) / (0.7 * ANSWERING)
        self._learn(loss + 0.3 * helped.sum(), 0.6 * _RATE * min(1.0, (step + 1) / _WARM, left))

    def check(self) -> None:
        """Say how well it does on what it never learnt from, and ask more of what it does not."""
        shares = self._seen() if self.step <= LOOKING else self._answered()
        wrong = {topic: 1 - share for topic, share in shares.items()}
        self.weights = {topic: 0.1 + wrong[topic] for topic in _STILL}
        told = " ".join(f"{topic} {share:.2f}" for topic, share in shares.items())
        loss = sum(self._losses) / len(self._losses)
        print(f"step {self.step}: loss {loss:.3f}, right: {told}", flush=True)
        self._losses = []

    def _learn(self, loss: torch.Tensor, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._losses.append(float(loss.detach()))

    def _lessons(self, number: int) -> list[Lesson]:
        source = random.Random(self.step)
        topics = source.choices(list(self.weights), list(self.weights.values()), k=number)
        seeds = (2 * (self.step * _PICTURES + index) for index in range(number))
        return [make_lesson(seed, topic) for seed, topic in zip(seeds, topics, strict=True)]

    def _talks(self) -> list[Example]:
        source, lessons = random.Random(self.step), self._lessons(_TALKS - 1)
        lessons.append(make_lesson(2 * self.step, "greeting"))
        return [
            self.school.example(x, num_more=source.randint(0, 2), text_first=source.random() < 0.3)
            for x in lessons
        ]

    def _clips(self) -> list[Example]:
        source = random.Random(self.step)
        seeds = (2 * (self.step * _CLIPS + index) for index in range(_CLIPS))
        return [
            self.school.example(
                make_lesson(seed, "order"), text_first=source.random() < 0.3,
                fps=source.choice(_FPS),
            )
            for seed in seeds
        ]  # fmt: skip

    @torch.no_grad()
    def _seen(self) -> dict[str, float]:
        shares = {}
        for topic in _STILL:
            pixels, seen = self._held_out.pictures[topic]
            with torch.autocast("cpu", torch.bfloat16):
                tokens, _ = self.fast.tower(pixels)
            shares[topic] = min(self.helper.shares_right(tokens, seen))
        return shares

    @torch.no_grad()
    def _answered(self) -> dict[str, float]:
        shares = {}
        for topic, batch in self._held_out.talks.items():
            with torch.autocast("cpu", torch.bfloat16):
                said = self.fast.logits(batch).argmax(-1)
            right = (said == batch.labels) | (batch.labels == NONE)
            shares[topic] = float(right.all(1).float().mean())
        return shares

    @cached_property
    def _held_out(self) -> HeldOut:
        school = School(self.school.tokenizer)
        seeds = range(10**7, 10**7 + _CHECKED)
        lessons = {t: [make_lesson(2 * seed + 1, t) for seed in seeds] for t in (*_STILL, "order")}
        return HeldOut(
            {topic: school.pictures(lessons[topic]) for topic in _STILL},
            {topic: school.batch([school.example(x) for x in lessons[topic]]) for topic in lessons},
        )


@dataclass(frozen=True)
class HeldOut:
    """Pictures and questions by topic, none of them for training, none for examination."""

    pictures: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    talks: Mapping[str, Batch]


def _kept() -> Path:
    return cache_dir() / "seeing-training.pt"


def _optimizers(model: Any, helper: Helper) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, AdamW for all else."""
    matrices, others = [], list(helper.parameters())
    for name, parameter in model.named_parameters():
        is_layer = "layers." in name or "blocks." in name
        (matrices if parameter.ndim == 2 and is_layer else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices, lr=_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]  # fmt: skip
