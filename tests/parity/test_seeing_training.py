"""What trains the tiny model that sees: the lessons are true, its arithmetic transformers' own."""

import pytest
import torch

from tests.models.seeing_data import COLOURS, make_lesson, relation_of
from tests.models.seeing_fast import Fast
from tests.models.seeing_model import new_model, new_tokenizer
from tests.models.seeing_school import School


@pytest.fixture(scope="module")
def school() -> School:
    return School(new_tokenizer())


@pytest.mark.parametrize("topic", ["relation", "order"])
def test_the_fast_forward_pass_gives_transformers_logits(school: School, topic: str) -> None:
    torch.manual_seed(0)
    model = new_model(school).eval()
    model.set_attn_implementation("eager")
    lessons = [make_lesson(seed, topic) for seed in range(3)]
    examples = [school.example(x, text_first=n == 1) for n, x in enumerate(lessons)]
    with torch.no_grad():
        ours = Fast(model, side=8).logits(school.batch(examples))
        theirs = model(**school.questions(examples)).logits[:, -1]
    last = torch.tensor([len(example.question) - 1 for example in examples])
    torch.testing.assert_close(ours[torch.arange(3), last], theirs, atol=1e-4, rtol=1e-4)


def test_a_conversation_is_the_templates_and_only_answers_are_learnt(school: School) -> None:
    example = school.example(make_lesson(2, "relation"), num_more=1)
    ids = example.prompt.token_ids
    learnt = [token for token, wanted in zip(ids, example.wanted, strict=True) if wanted]
    said = [example.lesson.answer, example.lesson.more[0][1]]
    assert school.tokenizer.decode(learnt) == "".join(f"{answer}<|im_end|>" for answer in said)
    content = [{"type": "image"}, {"type": "text", "text": example.lesson.question}]
    asked = school.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    pads = school.tokenizer.decode(example.question).replace("<|image_pad|>" * 16, "<|image_pad|>")
    assert pads == asked


def test_a_drawing_shows_what_its_lesson_says() -> None:
    lesson = make_lesson(7, "relation")
    picture = lesson.pictures[0]
    for thing in lesson.things:
        middle = int(thing.middle[0]), int(thing.middle[1])
        assert picture.getpixel(middle) == COLOURS[thing.colour]
    assert lesson.answer.lower().startswith(relation_of(*lesson.things))
