"""Thinking and answer apart, whatever the cuts between the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.parsing.reasoning import (
    ReasoningParser,
    message_opens_thinking,
    prompt_opens_thinking,
)

CASES = [
    # the model opens and closes, as Qwen3 does
    (False, "<think>\nLet me see.\n\nSo.\n</think>\n\nParis.", "Let me see.\n\nSo.", "Paris."),
    (False, "\n <think>a</think>b", "a", "b"),
    # the template has opened, as Qwen3-Thinking-2507's does: no opening tag is written
    (True, "Let me see.\n</think>\n\nParis.", "Let me see.", "Paris."),
    (True, "</think>Paris.", "", "Paris."),
    # no thinking at all: off by the template, or a model that never thinks
    (False, "Paris.", "", "Paris."),
    (False, "\n\n Paris.", "", "\n\n Paris."),
    (False, "", "", ""),
    # an empty block
    (False, "<think>\n\n</think>\n\nParis.", "", "Paris."),
    # ended by the limit, inside
    (False, "<think>\nLet me", "Let me", ""),
    (True, "Let me\n", "Let me", ""),
    (False, "<thi", "", "<thi"),
    (False, "<think>a</thin", "a</thin", ""),
    (False, "<think>a</think>\n", "a", ""),
    # words about tags
    (False, "<b>bold</b>", "", "<b>bold</b>"),
    (False, "The tag <think> begins it, </think> ends it.", "",
     "The tag <think> begins it, </think> ends it."),
    (False, "<think>is </thing> it? <</think>yes</think>", "is </thing> it? <", "yes</think>"),
    # blank lines inside are kept
    (True, "a\n\n\nb</think>\n\n\nc\n\nd\n", "a\n\n\nb", "c\n\nd\n"),
]  # fmt: skip


def read(pieces: list[str], *, is_thinking: bool) -> tuple[str, str]:
    parser = ReasoningParser(is_thinking=is_thinking)
    splits = [*map(parser.feed, pieces), parser.flush()]
    return "".join(s.reasoning for s in splits), "".join(s.content for s in splits)


@pytest.mark.parametrize(("is_thinking", "text", "reasoning", "content"), CASES)
def test_both_parts_are_the_same_in_one_piece_and_character_by_character(
    is_thinking: bool, text: str, reasoning: str, content: str
) -> None:
    assert read([text], is_thinking=is_thinking) == (reasoning, content)
    assert read(list(text), is_thinking=is_thinking) == (reasoning, content)
    for place in range(len(text)):
        cut = [text[:place], text[place:]]
        assert read(cut, is_thinking=is_thinking) == (reasoning, content)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", "\n", "a", " "])),
    st.booleans(),
    st.data(),
)
def test_cuts_change_nothing_and_no_word_is_lost(
    parts: list[str], is_thinking: bool, data: st.DataObject
) -> None:
    text = "".join(parts)
    whole = read([text], is_thinking=is_thinking)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    cuts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(cuts, is_thinking=is_thinking) == whole
    assert "".join(whole).count("a") == text.count("a")


def test_thinking_is_shown_as_it_comes_except_what_may_be_the_tag() -> None:
    parser = ReasoningParser(is_thinking=True)
    assert parser.feed("Let me").reasoning == "Let me"
    assert parser.feed(" see.\n</").reasoning == " see."
    assert parser.is_thinking
    assert parser.feed("b>").reasoning == "\n</b>"
    assert parser.feed("</think>").reasoning == ""
    assert not parser.is_thinking


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_only_the_end_of_the_prompt_opens_the_thinking(prompt: str, is_open: bool) -> None:
    assert prompt_opens_thinking(prompt) is is_open


def test_a_message_to_be_continued_may_stand_in_its_thinking() -> None:
    assert message_opens_thinking("<think>\nI")
    assert not message_opens_thinking("<think>\nI\n</think>\n\nYes")
    assert not message_opens_thinking("Yes")
