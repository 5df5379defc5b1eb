"""Calls of tools on the real path: the model writes them, the client gets them.

Covers API-007, -033 and -041 of the reported cases.
"""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import (
    BROKEN_CALL,
    PARIS_ARGUMENTS,
    TOKYO_ARGUMENTS,
    TOOLS,
    user,
)
from tests.models.memorised import build_memorised

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
TWO = [("get_weather", TOKYO_ARGUMENTS), ("get_time", "{}")]
PARIS = [("get_weather", PARIS_ARGUMENTS)]


def say(client: openai.OpenAI, question: Any, *, off: bool = True, **settings: Any) -> Any:
    messages = user(question) if isinstance(question, str) else question
    fields = {"temperature": 0, "max_tokens": 200, "tools": TOOLS, **settings}
    extra = OFF if off else {}
    return client.chat.completions.create(model=NAME, messages=messages, extra_body=extra, **fields)


def heard(chunks: Any) -> tuple[str, list[tuple[str, str]], str, str]:
    """Return content, calls, thinking and the reason to finish, put together from deltas."""
    words, thinking, finish = "", "", ""
    calls: list[list[str]] = []
    for chunk in chunks:
        choice = chunk.choices[0]
        words += choice.delta.content or ""
        thinking += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls)
                assert call.type == "function"
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
    return words, [(name, arguments) for name, arguments in calls], thinking, finish


def told(answer: Any) -> tuple[str, list[tuple[str, str]], str, str]:
    """Return the same of a whole answer."""
    message = answer.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    ids = {call.id for call in message.tool_calls or []}
    assert len(ids) == len(calls)
    thinking = message.reasoning_content or ""
    return message.content or "", calls, thinking, answer.choices[0].finish_reason


@pytest.mark.parametrize(
    ("question", "off", "expected"),
    [
        ("Weather in Paris?", True, ("", PARIS, "", "tool_calls")),
        ("Weather in Paris?", False, ("", PARIS, "I need a tool.", "tool_calls")),
        ("Two things", True, ("I will ask.", TWO, "", "tool_calls")),
        ("Hello", True, ("Hello! 1 < 2 <tool", [], "", "stop")),
        ("Break a call", True, (BROKEN_CALL, [], "", "stop")),
    ],
)
def test_calls_words_and_thinking_come_apart_streamed_and_whole(
    talker: openai.OpenAI, question: str, off: bool, expected: tuple[Any, ...]
) -> None:
    assert told(say(talker, question, off=off)) == expected
    assert heard(say(talker, question, off=off, stream=True)) == expected


def test_content_is_null_where_there_are_only_calls(talker: openai.OpenAI) -> None:
    message = say(talker, "Weather in Paris?").choices[0].message
    assert message.content is None
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris", "days": 3}


def test_arguments_are_streamed_in_pieces(talker: openai.OpenAI) -> None:
    deltas = [
        call.function.arguments
        for chunk in say(talker, "Weather in Paris?", stream=True)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert len([delta for delta in deltas if delta]) > 3


def test_a_whole_conversation_with_a_tool(talker: openai.OpenAI) -> None:
    """As the client's documentation has it: the message goes back as it came, content null."""
    first = say(talker, "Weather in Paris?").choices[0].message
    turns = [
        *user("Weather in Paris?"),
        first.model_dump(exclude_none=False),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "21 degrees"},
    ]
    assert told(say(talker, turns)) == ("It is 21 degrees.", [], "", "stop")
    plain = {key: turns[1][key] for key in ("role", "content", "tool_calls")}
    assert told(say(talker, [turns[0], plain, turns[2]])) == ("It is 21 degrees.", [], "", "stop")


def test_without_parallel_calls_only_the_first_comes(talker: openai.OpenAI) -> None:
    expected = ("I will ask.", TWO[:1], "", "tool_calls")
    assert told(say(talker, "Two things", parallel_tool_calls=False)) == expected
    assert heard(say(talker, "Two things", parallel_tool_calls=False, stream=True)) == expected


def test_a_stop_string_while_a_call_is_held_back_loses_no_text(talker: openai.OpenAI) -> None:
    expected = ('So:\n<tool_call>\n{"name', [], "", "stop")
    assert told(say(talker, "Break a call", stop=['": get'])) == expected
    assert heard(say(talker, "Break a call", stop=['": get'], stream=True)) == expected


@pytest.mark.parametrize("limit", range(1, 40, 3))
def test_whatever_the_limit_streamed_and_whole_agree(talker: openai.OpenAI, limit: int) -> None:
    whole = told(say(talker, "Two things", max_tokens=limit))
    assert heard(say(talker, "Two things", max_tokens=limit, stream=True)) == whole
    assert whole[3] == "length"
    for (name, arguments), (of_name, of_arguments) in zip(whole[1], TWO, strict=False):
        assert name == of_name
        assert of_arguments.startswith(arguments)


def test_with_tool_choice_none_the_model_is_shown_no_tools(
    talker: openai.OpenAI, memorised: ServerProcess
) -> None:
    none = say(talker, "Capital of France?", tool_choice="none")
    assert told(none) == ("Paris.", [], "", "stop")
    body = {"messages": user("Capital of France?"), **OFF}
    assert none.usage.prompt_tokens == memorised.post("/tokenize", body)[1]["count"]


def test_every_choice_has_calls_of_its_own(talker: openai.OpenAI) -> None:
    answer = say(talker, "Two things", n=2)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
         "tools[0].function.parameters"),
        ({"tools": TOOLS * 70}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
    ],
)  # fmt: skip
def test_wrong_tools_are_named(memorised: ServerProcess, fields: Any, param: str) -> None:
    status, answer = memorised.post("/v1/chat/completions", {"messages": user("Hi"), **fields})
    assert status == 400
    assert answer["error"]["param"] == param


def test_a_model_without_tools_in_its_template_refuses_them(server: ServerProcess) -> None:
    body = {"messages": user("Hi"), "tools": TOOLS}
    status, answer = server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert "template" in answer["error"]["message"]


def test_the_choice_can_be_taken_from_the_model(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(
        str(build_memorised()), "--device", "cpu", "--dtype", "float32", "--max-model-len", "512",
        "--no-enable-auto-tool-choice", "--num-gpu-blocks-override", "64", "--block-size", "16",
    ).wait_ready()  # fmt: skip
    body = {"messages": user("Weather in Paris?"), "tools": TOOLS, "max_tokens": 5}
    status, answer = server.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
