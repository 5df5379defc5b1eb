"""Calls of tools in an answer: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

The format that Qwen3's template teaches (Nous Hermes'). Called by the server with each piece of an
answer's text, streamed or not, so both give the same. Arguments are passed on as they are written,
character by character; what turns out to be no call is passed on as text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from qwen_engine.parsing.held import split_possible_tag

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_STRING = r'"(?:[^"\\]|\\.)*"'
# All of a call before its arguments, if it is written in the usual order.
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"arguments"\s*:\s*(?=\{{)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Text:
    """Words beside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; calls count from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, which are JSON once they are complete."""

    index: int
    text: str


Event = Text | CallStart | Arguments


class _State(Enum):
    TEXT = auto()
    HEAD = auto()  # after the tag, before the arguments
    ARGUMENTS = auto()
    TAIL = auto()  # between the arguments and the closing tag


def knows_tools(template: str) -> bool:
    """Say whether a chat template shows tools to the model and teaches this format."""
    return OPEN in template and "tools" in template


class ToolCallParser:
    """Reads one answer. Line breaks around a call belong to its tags, as in the template."""

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._held = ""
        self._breaks = ""  # before the tag just read: they go with it
        self._arguments = _ArgumentsScanner()
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """Take new text, return what is certain."""
        self._held += text
        events: list[Event] = []
        while self._advance(events):
            pass
        return events

    def flush(self) -> list[Event]:
        """Return what was held back: nothing follows."""
        held, self._held = self._held, ""
        if self._state is _State.HEAD:
            held = self._breaks + OPEN + held
        elif self._state is not _State.TEXT or (self.num_calls and not held.strip()):
            held = ""
        self._state = _State.TEXT
        return [Text(held)] if held else []

    def _advance(self, events: list[Event]) -> bool:
        """Go on as far as one state leads; False when more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._read_text(events)
            case _State.HEAD:
                return self._read_head(events)
            case _State.ARGUMENTS:
                return self._read_arguments(events)
            case _State.TAIL:
                return self._read_tail()

    def _read_text(self, events: list[Event]) -> bool:
        if self.num_calls:  # the breaks after a call
            self._held = self._held.lstrip("\n")
        before, tag, after = self._held.partition(OPEN)
        if tag:
            self._held, self._state = after, _State.HEAD
            shown = before.rstrip("\n")
            self._breaks = before[len(shown) :]
        else:
            certain, possible = split_possible_tag(before, OPEN)
            shown = certain.rstrip("\n")
            self._held = certain[len(shown) :] + possible
        if shown:
            events.append(Text(shown))
        return bool(tag)

    def _read_head(self, events: list[Event]) -> bool:
        if (head := _HEAD.match(self._held)) is not None:
            events.append(CallStart(self.num_calls, json.loads(head[1], strict=False)))
            self._held, self._state = self._held[head.end() :], _State.ARGUMENTS
            self._arguments = _ArgumentsScanner()
            return True
        body, tag, after = self._held.partition(CLOSE)
        if not tag:
            return False
        self._held, self._state = after, _State.TEXT
        call = _parse_call(body)
        if call is None:
            events.append(Text(self._breaks + OPEN + body + CLOSE))
        else:
            events += [CallStart(self.num_calls, call[0]), Arguments(self.num_calls, call[1])]
            self.num_calls += 1
        return True

    def _read_arguments(self, events: list[Event]) -> bool:
        shown, length = self._arguments.take(self._held)
        self._held = self._held[length:]
        if shown:
            events.append(Arguments(self.num_calls, shown))
        if not self._arguments.is_done:
            return False
        self.num_calls += 1
        self._state = _State.TAIL
        return True

    def _read_tail(self) -> bool:
        _, tag, after = self._held.partition(CLOSE)
        if tag:
            self._held, self._state = after, _State.TEXT
        return bool(tag)


class _ArgumentsScanner:
    """Finds the end of a JSON object without parsing it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_done = False

    def take(self, text: str) -> tuple[str, int]:
        """Return the object's share of the text, and how many characters were read for it.

        Line breaks inside strings, which models write and JSON forbids, are escaped.
        """
        shown: list[str] = []
        for place, character in enumerate(text):
            if not self._in_string and character == "<":  # never in JSON: the call was broken off
                self.is_done = True
                return "".join(shown), place
            is_raw = self._in_string and character < " "
            shown.append(json.dumps(character)[1:-1] if is_raw else character)
            self._note(character)
            if self.is_done:
                return "".join(shown), place + 1
        return "".join(shown), len(text)

    def _note(self, character: str) -> None:
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0


def _parse_call(body: str) -> tuple[str, str] | None:
    """Return name and arguments of a call in an unusual order; None if it is no call."""
    try:
        call: Any = json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call["name"], arguments
