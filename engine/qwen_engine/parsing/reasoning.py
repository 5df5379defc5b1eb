"""Thinking and answer apart: `<think>…</think>` as Qwen3 writes it.

Called by the server with each piece of an answer's text, streamed or not, so both give the same.
Whether the answer begins inside the thinking is decided from the rendered prompt: templates open
the block (Qwen3-Thinking-2507), close it (`enable_thinking` false), or leave both to the model.
Only the first block is thinking; later tags are the model's words about tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from qwen_engine.parsing.held import split_possible_tag

OPEN, CLOSE = "<think>", "</think>"
_ENDS_OPEN = re.compile(r"<think>\s*\Z")
_ENDS_CLOSED = re.compile(r"</think>\s*\Z")


def knows_thinking(template: str) -> bool:
    """Say whether a chat template is one of a model that thinks."""
    return OPEN in template or CLOSE in template


def prompt_opens_thinking(prompt: str) -> bool:
    """Say whether a rendered prompt ends inside a thinking block.

    Only its very end counts: a user may write about tags anywhere before it.
    """
    return _ENDS_OPEN.search(prompt) is not None


def prompt_closes_thinking(prompt: str) -> bool:
    """Say whether a rendered prompt ends after a thinking block that is done with."""
    return _ENDS_CLOSED.search(prompt) is not None


def message_opens_thinking(content: str) -> bool:
    """Say the same of an assistant's unfinished message that the model is to continue."""
    return content.rfind(OPEN) > content.rfind(CLOSE)


@dataclass(frozen=True, slots=True)
class Split:
    """New text of both kinds."""

    reasoning: str = ""
    content: str = ""


class _State(Enum):
    UNDECIDED = auto()  # nothing but white space or half a tag so far
    THINKING = auto()
    AFTER_THINKING = auto()  # between the tag and the first line of the answer
    ANSWERING = auto()


class ReasoningParser:
    """Reads one answer. Line breaks around both parts belong to the tags, as in the template."""

    def __init__(self, *, is_thinking: bool) -> None:
        self._state = _State.THINKING if is_thinking else _State.UNDECIDED
        self._held = ""
        self._has_reasoning = False

    @property
    def is_thinking(self) -> bool:
        return self._state is _State.THINKING

    def feed(self, text: str) -> Split:
        """Take new text, return what is certain."""
        self._held += text
        if self._state is _State.UNDECIDED:
            self._decide()
        reasoning = self._take_reasoning() if self._state is _State.THINKING else ""
        return Split(reasoning, self._take_content())

    def flush(self) -> Split:
        """Return what was held back: nothing follows."""
        held, self._held = self._held, ""
        if self._state is _State.THINKING:
            return Split(reasoning=self._without_first_breaks(held).rstrip("\n"))
        if self._state is _State.AFTER_THINKING:
            return Split()
        return Split(content=held)

    def _decide(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self._state = _State.THINKING
            self._held = begun[len(OPEN) :]
        elif not OPEN.startswith(begun):
            self._state = _State.ANSWERING

    def _take_reasoning(self) -> str:
        if (end := self._held.find(CLOSE)) >= 0:
            shown, rest = self._held[:end], self._held[end + len(CLOSE) :]
            self._state, self._held = _State.AFTER_THINKING, rest
            return self._without_first_breaks(shown).rstrip("\n")
        certain, tag = split_possible_tag(self._held, CLOSE)
        shown = certain.rstrip("\n")
        self._held = certain[len(shown) :] + tag
        return self._without_first_breaks(shown)

    def _without_first_breaks(self, text: str) -> str:
        if not self._has_reasoning:
            text = text.lstrip("\n")
            self._has_reasoning = bool(text)
        return text

    def _take_content(self) -> str:
        if self._state is _State.AFTER_THINKING:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = _State.ANSWERING
        if self._state is not _State.ANSWERING:
            return ""
        content, self._held = self._held, ""
        return content
