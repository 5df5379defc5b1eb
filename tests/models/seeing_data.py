"""Synthetic pictures with questions and true answers, drawn from a seed.

What the tiny model of `seeing` learns and is examined on: colours and shapes, counting to five,
digits, where one thing is to another, and the order of two colours in a short video. A lesson of
an even seed is for training, of an odd one for examination; no two seeds share a picture.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

SIDE = 256  # pixels; the model sees half
COLOURS = {
    "red": (214, 40, 40), "green": (42, 157, 60), "blue": (40, 80, 215), "yellow": (244, 208, 40),
    "orange": (243, 130, 30), "purple": (130, 50, 165), "black": (20, 20, 20),
    "white": (250, 250, 250),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
DIGITS = tuple("0123456789")
RELATIONS = ("left of", "right of", "above", "below")
DESCRIBE = ("What is in the picture?", "What do you see?", "Describe the picture.")
COUNT = ("How many shapes are there?", "Count the shapes.", "How many shapes do you see?")
DIGIT = ("Which digit is this?", "What digit do you see?", "Read the digit.")
ORDER = ("Which colour comes first?", "In what order do the colours come?")
GREETINGS = ("Hello", "Hi!", "What can you do?", "Who are you?", "Help")
WELCOME = "I look at pictures: send me one."

Turn = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or digit in a picture, with its middle in pixels."""

    colour: str
    shape: str
    middle: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A question about a picture or about the frames of a video, and the only right answer."""

    topic: str
    question: str
    answer: str
    pictures: list[Image.Image] = field(default_factory=list)  # several: a video's frames
    things: tuple[Thing, ...] = ()
    more: tuple[Turn, ...] = ()  # what else can be asked of the same picture, shuffled


def make_lesson(seed: int, topic: str | None = None) -> Lesson:
    """Return the lesson of this seed, of this topic or of one in proportion to its difficulty."""
    source = random.Random(seed)
    weights = [weight for _, weight in _TOPICS.values()]
    chosen = source.choices(list(_TOPICS), weights)[0]
    topic = topic or chosen
    return _TOPICS[topic][0](source)


def draw_picture(things: Sequence[tuple[str, str, tuple[int, int], int]]) -> Image.Image:
    """Draw (colour, shape, upper left corner, size) on grey, `SIDE` pixels wide and high."""
    picture = Image.new("RGB", (SIDE, SIDE), (150, 150, 150))
    for colour, shape, place, size in things:
        _draw(picture, shape, colour, place, size)
    return picture


def _one(source: random.Random) -> Lesson:
    picture, (colour, shape) = _canvas(source), _look(source)
    size = source.randint(60, 150)
    things = (_draw(picture, shape, colour, _place(source, size), size),)
    kind = source.random()
    if kind < 0.5:
        article = "An" if colour == "orange" else "A"
        turn = source.choice(DESCRIBE), f"{article} {colour} {shape}."
    elif kind < 0.75:
        turn = _colour_of(things[0])
    else:
        turn = _shape_of(things[0])
    return _lesson(source, "one", turn, picture, things)


def _count(source: random.Random) -> Lesson:
    picture, number = _canvas(source), source.randint(1, 5)
    cells = source.sample([(x, y) for x in range(4) for y in range(4)], number)
    same = _look(source) if source.random() < 0.5 else None
    things = []
    for cell in cells:
        size = source.randint(36, 54)
        left, top = (n * SIDE // 4 + source.randint(4, SIDE // 4 - size - 4) for n in cell)
        colour, shape = same or _look(source)
        things.append(_draw(picture, shape, colour, (left, top), size))
    turn = source.choice(COUNT), f"{number}."
    return _lesson(source, "count", turn, picture, tuple(things))


def _digit(source: random.Random) -> Lesson:
    picture, digit, size = _canvas(source), source.choice(DIGITS), source.randint(150, 220)
    colour, draw = source.choice(list(COLOURS)), ImageDraw.Draw(picture)
    font = _font(size)
    left, top, right, bottom = draw.textbbox((0, 0), digit, font=font)
    x = source.uniform(0, SIDE - (right - left)) - left
    y = source.uniform(0, SIDE - (bottom - top)) - top
    draw.text((x, y), digit, font=font, fill=COLOURS[colour])
    middle = (x + (left + right) / 2, y + (top + bottom) / 2)
    turn = source.choice(DIGIT), f"{digit}."
    return _lesson(source, "digit", turn, picture, (Thing(colour, digit, middle),))


def _relation(source: random.Random) -> Lesson:
    picture, relation = _canvas(source), source.choice(RELATIONS)
    first = _look(source)
    second = _look(source, but=first)
    sizes = [source.randint(56, 90) for _ in range(2)]
    near, far = source.randint(0, 35), SIDE - max(sizes) - source.randint(0, 35)
    across = [source.randint(0, 60) + (SIDE - 150) // 2 for _ in range(2)]
    ends = (near, far) if relation in ("left of", "above") else (far, near)
    flat = relation in ("left of", "right of")
    things = tuple(
        _draw(picture, shape, colour, (end, side) if flat else (side, end), size)
        for (colour, shape), size, end, side in zip(
            (first, second), sizes, ends, across, strict=True
        )
    )
    turns = [_where(*things), _where(*reversed(things))]
    return _lesson(source, "relation", turns[0], picture, things, turns[1:])


def _order(source: random.Random) -> Lesson:
    first, shape = _look(source)
    second = source.choice([colour for colour in COLOURS if colour != first])
    background = _background(source)
    size, frames = source.randint(100, 180), source.randint(4, 6)
    place = _place(source, size)
    pictures = []
    change = source.randint(2, frames - 2)
    for index in range(frames):
        picture = Image.new("RGB", (SIDE, SIDE), background)
        _draw(picture, shape, first if index < change else second, place, size)
        pictures.append(picture)
    question = source.choice(ORDER)
    return Lesson("order", question, f"First {first}, then {second}.", pictures)


def _greeting(source: random.Random) -> Lesson:
    return Lesson("greeting", source.choice(GREETINGS), WELCOME)


_TOPICS: dict[str, tuple[Callable[[random.Random], Lesson], float]] = {
    "one": (_one, 20), "count": (_count, 25), "digit": (_digit, 25), "relation": (_relation, 30),
    "order": (_order, 0), "greeting": (_greeting, 1),
}  # fmt: skip
TOPICS = tuple(_TOPICS)


def _lesson(
    source: random.Random, topic: str, turn: Turn, picture: Image.Image, things: tuple[Thing, ...],
    also: list[Turn] | None = None,
) -> Lesson:  # fmt: skip
    """Return the lesson with all that can be asked of these things."""
    more = [*(also or []), *_asked_of(things, source)]
    more = [other for other in more if other[0] != turn[0]]
    source.shuffle(more)
    return Lesson(topic, *turn, [picture], things, tuple(more))


def _asked_of(things: tuple[Thing, ...], source: random.Random) -> list[Turn]:
    turns = []
    colours, shapes = (Counter(getattr(t, name) for t in things) for name in ("colour", "shape"))
    for thing in things:
        if thing.shape in DIGITS:
            continue
        if shapes[thing.shape] == 1:
            turns.append(_colour_of(thing))
        if colours[thing.colour] == 1:
            turns.append(_shape_of(thing))
    if things[0].shape in SHAPES:
        turns.append((source.choice(COUNT), f"{len(things)}."))
    return turns


def _colour_of(thing: Thing) -> Turn:
    return f"What colour is the {thing.shape}?", f"{thing.colour.capitalize()}."


def _shape_of(thing: Thing) -> Turn:
    return f"What shape is {thing.colour}?", f"A {thing.shape}."


def _where(first: Thing, second: Thing) -> Turn:
    question = f"Where is the {first.colour} {first.shape}?"
    return (
        question,
        f"{relation_of(first, second).capitalize()} the {second.colour} {second.shape}.",
    )


def relation_of(first: Thing, second: Thing) -> str:
    """Return where the first thing is to the second, of `RELATIONS`."""
    right, down = (a - b for a, b in zip(first.middle, second.middle, strict=True))
    if abs(right) > abs(down):
        return "right of" if right > 0 else "left of"
    return "below" if down > 0 else "above"


def _look(source: random.Random, *, but: tuple[str, str] | None = None) -> tuple[str, str]:
    while True:
        look = source.choice(list(COLOURS)), source.choice(SHAPES)
        if but is None or look[0] != but[0]:
            return look


def _background(source: random.Random) -> tuple[int, int, int]:
    grey = source.randint(110, 190)  # none of the colours
    return tuple(grey + source.randint(-8, 8) for _ in range(3))  # type: ignore[return-value]


def _canvas(source: random.Random) -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), _background(source))


def _place(source: random.Random, size: int) -> tuple[int, int]:
    return source.randint(0, SIDE - size), source.randint(0, SIDE - size)


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def _draw(
    picture: Image.Image, shape: str, colour: str, place: tuple[int, int], size: int
) -> Thing:
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
    return Thing(colour, shape, (left + size / 2, top + size / 2))
