"""Calls of tools in text, whatever the cuts between the pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.parsing.tool_calls import Arguments, CallStart, Event, Text, ToolCallParser


def read(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls, with their arguments joined."""
    parser = ToolCallParser()
    events: list[Event] = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.flush()
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return "".join(event.text for event in events if isinstance(event, Text)), calls


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


BROKEN = call('{"name": get')
NICE = '{"name": "f", "arguments": {"a": [1, {"b": "}"}], "c": "<\\"tool_call>"}}'
NICE_ARGUMENTS = '{"a": [1, {"b": "}"}], "c": "<\\"tool_call>"}'

CASES = [
    ("Hello.\n\nYou", "Hello.\n\nYou", []),
    (call(NICE), "", [("f", NICE_ARGUMENTS)]),
    (f"Let me see.\n{call(NICE)}\n", "Let me see.", [("f", NICE_ARGUMENTS)]),
    (
        call(NICE) + "\n" + call('{"name": "g", "arguments": {}}'),
        "",
        [("f", NICE_ARGUMENTS), ("g", "{}")],
    ),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
    # the closing tag inside a string is a string's content
    (
        call('{"name": "f", "arguments": {"x": "</tool_call>"}}'),
        "",
        [("f", '{"x": "</tool_call>"}')],
    ),
    # unusual orders and kinds
    (call('{"arguments": {"a": 1}, "name": "f"}'), "", [("f", '{"a": 1}')]),
    (call('{"name": "f"}'), "", [("f", "{}")]),
    (call('{"name": "f", "arguments": "{\\"a\\": 1}"}'), "", [("f", '{"a": 1}')]),
    (call('{"name": "f", "parameters": {"a": "é"}}'), "", [("f", '{"a": "é"}')]),
    # line breaks that JSON forbids
    (call('{"name": "f", "arguments": {"a": "1\n2"}}'), "", [("f", '{"a": "1\\n2"}')]),
    # no calls: shown as they are
    (f"So: {BROKEN} Done.", f"So: {BROKEN} Done.", []),
    (call('["f"]'), call('["f"]'), []),
    (call(""), call(""), []),
    (f"So:\n\n{BROKEN}", f"So:\n\n{BROKEN}", []),
    # ended by the limit
    ("So:\n<tool_call>\n{", "So:\n<tool_call>\n{", []),
    ("Hello <tool", "Hello <tool", []),
    ('<tool_call>\n{"name": "f"', '<tool_call>\n{"name": "f"', []),
    ('<tool_call>\n{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</to', "", [("f", '{"a": 1}')]),
    # broken off in the middle, then another one
    (
        '<tool_call>{"name": "f", "arguments": {"a": \n</tool_call>' + call(NICE),
        "",
        [("f", '{"a": \n'), ("f", NICE_ARGUMENTS)],
    ),
    # words after a call
    (f"{call(NICE)}\n\nDone.", "Done.", [("f", NICE_ARGUMENTS)]),
]


@pytest.mark.parametrize(("text", "words", "calls"), CASES)
def test_the_same_is_found_in_one_piece_and_character_by_character(
    text: str, words: str, calls: list[tuple[str, str]]
) -> None:
    assert read([text]) == (words, calls)
    assert read(list(text)) == (words, calls)
    for place in range(len(text)):
        assert read([text[:place], text[place:]]) == (words, calls)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), _JSON), st.booleans(), st.data())
def test_any_arguments_come_out_as_they_went_in(
    arguments: dict[str, object], is_ascii: bool, data: st.DataObject
) -> None:
    written = json.dumps(arguments, ensure_ascii=is_ascii)
    text = call(f'{{"name": "f", "arguments": {written}}}')
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    cuts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    words, calls = read(cuts)
    assert (words, [name for name, _ in calls]) == ("", ["f"])
    assert json.loads(calls[0][1]) == arguments


def test_arguments_are_streamed_as_they_are_written() -> None:
    parser = ToolCallParser()
    assert parser.feed('<tool_call>\n{"name": "f", "arg') == []
    assert parser.feed('uments": {"a"') == [CallStart(0, "f"), Arguments(0, '{"a"')]
    assert parser.feed(': "x') == [Arguments(0, ': "x')]
    assert parser.feed('"}}\n</tool_call>') == [Arguments(0, '"}')]
    assert parser.flush() == []
