"""Synthetic pictures with questions and true answers, drawn from a seed.

What the tiny model of `seeing` learns and is examined on: colours and shapes, counting to five,
digits, where one thing is to another, and the order of two colours in a short video. A lesson of
an even seed is for training, of an odd one for examination; no two seeds share a picture.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image, ImageDraw, ImageFont

SIDE = 256  # pixels; the model sees half
COLOURS = {
    "red": (214, 40, 40), "green": (42, 157, 60), "blue": (40, 80, 215), "yellow": (244, 208, 40),
    "orange": (243, 130, 30), "purple": (130, 50, 165), "black": (20, 20, 20),
    "white": (250, 250, 250),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
RELATIONS = ("left of", "right of", "above", "below")
DESCRIBE = ("What is in the picture?", "What do you see?", "Describe the picture.")
COUNT = ("How many shapes are there?", "Count the shapes.", "How many shapes do you see?")
DIGIT = ("Which digit is this?", "What digit do you see?", "Read the digit.")
ORDER = ("Which colour comes first?", "In what order do the colours come?")
GREETINGS = ("Hello", "Hi!", "What can you do?", "Who are you?", "Help")
WELCOME = "I look at pictures: send me one."


@dataclass(frozen=True, slots=True)
class Lesson:
    """A question about a picture or about the frames of a video, and the only right answer."""

    topic: str
    question: str
    answer: str
    pictures: list[Image.Image] = field(default_factory=list)  # several: a video's frames


def make_lesson(seed: int, topic: str | None = None) -> Lesson:
    """Return the lesson of this seed, of this topic or of one in proportion to its difficulty."""
    source = random.Random(seed)
    weights = [weight for _, weight in _TOPICS.values()]
    chosen = source.choices(list(_TOPICS), weights)[0]
    topic = topic or chosen
    return _TOPICS[topic][0](source)


def _one(source: random.Random) -> Lesson:
    picture, colour, shape = _canvas(source), *_thing(source)
    size = source.randint(60, 150)
    _draw(picture, shape, colour, _place(source, size), size)
    kind = source.random()
    if kind < 0.5:
        return Lesson("one", source.choice(DESCRIBE), f"A {colour} {shape}.", [picture])
    if kind < 0.75:
        return Lesson("one", f"What colour is the {shape}?", f"{colour.capitalize()}.", [picture])
    return Lesson("one", f"What shape is {colour}?", f"A {shape}.", [picture])


def _count(source: random.Random) -> Lesson:
    picture, number = _canvas(source), source.randint(1, 5)
    cells = source.sample([(x, y) for x in range(3) for y in range(3)], number)
    same = _thing(source) if source.random() < 0.5 else None
    for x, y in cells:
        size = source.randint(44, 72)
        room = SIDE // 3 - size
        left = x * SIDE // 3 + source.randint(0, room)
        top = y * SIDE // 3 + source.randint(0, room)
        colour, shape = same or _thing(source)
        _draw(picture, shape, colour, (left, top), size)
    return Lesson("count", source.choice(COUNT), f"{number}.", [picture])


def _digit(source: random.Random) -> Lesson:
    picture, digit = _canvas(source), str(source.randint(0, 9))
    size = source.randint(110, 210)
    font = ImageFont.load_default(size=size)
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = draw.textbbox((0, 0), digit, font=font)
    x = source.uniform(0, SIDE - (right - left)) - left
    y = source.uniform(0, SIDE - (bottom - top)) - top
    draw.text((x, y), digit, font=font, fill=COLOURS[source.choice(list(COLOURS))])
    return Lesson("digit", source.choice(DIGIT), f"{digit}.", [picture])


def _relation(source: random.Random) -> Lesson:
    picture, relation = _canvas(source), source.choice(RELATIONS)
    first = _thing(source)
    second = _thing(source, but=first)
    sizes = [source.randint(56, 90) for _ in range(2)]
    near, far = source.randint(0, 35), SIDE - max(sizes) - source.randint(0, 35)
    across = [source.randint(0, 60) + (SIDE - 150) // 2 for _ in range(2)]
    ends = (near, far) if relation in ("left of", "above") else (far, near)
    flat = relation in ("left of", "right of")
    for (colour, shape), size, end, side in zip((first, second), sizes, ends, across, strict=True):
        _draw(picture, shape, colour, (end, side) if flat else (side, end), size)
    question = f"Where is the {' '.join(first)}?"
    answer = f"{relation.capitalize()} the {' '.join(second)}."
    return Lesson("relation", question, answer, [picture])


def _order(source: random.Random) -> Lesson:
    first, shape = _thing(source)
    second = source.choice([colour for colour in COLOURS if colour != first])
    background = _background(source)
    size, frames = source.randint(100, 180), source.choice((4, 6, 8))
    place = _place(source, size)
    pictures = []
    for index in range(frames):
        picture = Image.new("RGB", (SIDE, SIDE), background)
        _draw(picture, shape, first if index < frames // 2 else second, place, size)
        pictures.append(picture)
    question = source.choice(ORDER)
    return Lesson("order", question, f"First {first}, then {second}.", pictures)


def _greeting(source: random.Random) -> Lesson:
    return Lesson("greeting", source.choice(GREETINGS), WELCOME)


_TOPICS: dict[str, tuple[Callable[[random.Random], Lesson], float]] = {
    "one": (_one, 20), "count": (_count, 25), "digit": (_digit, 20), "relation": (_relation, 25),
    "order": (_order, 0), "greeting": (_greeting, 1),
}  # fmt: skip
TOPICS = tuple(_TOPICS)


def _thing(source: random.Random, *, but: tuple[str, str] | None = None) -> tuple[str, str]:
    while True:
        thing = source.choice(list(COLOURS)), source.choice(SHAPES)
        if but is None or (thing[0] != but[0] and thing != but):
            return thing


def _background(source: random.Random) -> tuple[int, int, int]:
    grey = source.randint(110, 190)  # none of the colours
    return tuple(grey + source.randint(-8, 8) for _ in range(3))  # type: ignore[return-value]


def _canvas(source: random.Random) -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), _background(source))


def _place(source: random.Random, size: int) -> tuple[int, int]:
    return source.randint(0, SIDE - size), source.randint(0, SIDE - size)


def _draw(picture: Image.Image, shape: str, colour: str, place: tuple[int, int], size: int) -> None:
    draw, fill = ImageDraw.Draw(picture), COLOURS[colour]
    left, top = place
    right, bottom = left + size, top + size
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=fill)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=fill)
    elif shape == "triangle":
        draw.polygon([(left + size / 2, top), (left, bottom), (right, bottom)], fill=fill)
    else:
        third = size / 3
        draw.rectangle((left, top + third, right, bottom - third), fill=fill)
        draw.rectangle((left + third, top, right - third, bottom), fill=fill)
