"""Answers in a demanded form, on the real path: after the thinking, whole and streamed.

Covers API-031, -035 and -037 of the reported cases.
"""

import json
import re
from typing import Any

import jsonschema
import openai
import pytest

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.contract.test_api_reasoning import joined, say
from tests.contract.test_api_tools import PARIS, heard, told
from tests.contract.test_api_tools import say as say_with_tools
from tests.models.dialogues import PERSON, user

PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# A form that every model comes to the end of, whatever it wants to say.
SHORT_SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "kind": {"enum": ["a", "bé", "<c>"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
                  "minItems": 1, "maxItems": 3},
    },
    "required": ["ok", "kind", "sizes"],
    "additionalProperties": False,
}  # fmt: skip
CITY_TOOL = {
    "type": "function",
    "function": {
        "name": "pick_city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


@pytest.mark.parametrize("off", [True, False], ids=["plain", "thinking"])
def test_thinking_is_free_and_the_answer_is_in_form(talker: openai.OpenAI, off: bool) -> None:
    thinking = "" if off else 'Say {"a": 1}? No.'
    settings = {"off": off, "response_format": schema_format(PERSON_SCHEMA)}
    answer = say(talker, "A person, please", **settings)
    message = answer.choices[0].message
    assert (message.reasoning_content or "", message.content) == (thinking, PERSON)
    assert answer.choices[0].finish_reason == "stop"
    assert joined(say(talker, "A person, please", stream=True, **settings)) == (thinking, PERSON)


@pytest.mark.parametrize("off", [True, False], ids=["plain", "thinking"])
def test_a_model_that_wants_to_say_something_else_is_held_to_the_form(
    talker: openai.OpenAI, off: bool
) -> None:
    answer = say(talker, "Capital of France?", off=off, response_format=schema_format(SHORT_SCHEMA))
    message = answer.choices[0].message
    jsonschema.validate(json.loads(message.content), SHORT_SCHEMA)
    assert bool(message.reasoning_content) is not off
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("seed", range(8))
def test_noise_becomes_valid_json(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Hi"}], temperature=1.5, seed=seed,
        response_format=schema_format(SHORT_SCHEMA), max_tokens=300, n=2,
    )  # fmt: skip
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), SHORT_SCHEMA)
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_white_space_between_the_parts_of_json_is_bounded(client: openai.OpenAI, seed: int) -> None:
    """A model that likes white space above all gets no further with it."""
    ids = client.post("/../tokenize", body={"prompt": " \n\t"}, cast_to=dict[str, Any])["tokens"]
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Hi"}], seed=seed, max_tokens=300,
        response_format=schema_format(SHORT_SCHEMA), logit_bias={str(i): 50 for i in ids},
    )  # fmt: skip
    content = answer.choices[0].message.content
    jsonschema.validate(json.loads(content), SHORT_SCHEMA)
    assert max(map(len, re.findall(r"\s+", content)), default=0) <= 25


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_choice": ["yes", "no way", "vielleicht ü"]}, "yes|no way|vielleicht ü"),
        ({"guided_regex": r"[A-Z]{3}-\d{4}"}, r"[A-Z]{3}-\d{4}"),
        ({"guided_grammar": 'root ::= ("ab" | "cd") "!"'}, "(ab|cd)!"),
        ({"guided_grammar": 'start: ("ab" | "cd") "!"'}, "(ab|cd)!"),
        ({"guided_json": {"enum": [1, "x"]}}, '1|"x"'),
        ({"guided_json": '{"const": null}'}, "null"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "a|b"),
        ({"structured_outputs": {"regex": "x{3}"}}, "xxx"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
        ({"structured_outputs": {"grammar": 'start: "q"'}}, "q"),
    ],
)
def test_every_name_that_clients_of_vllm_use_is_understood_on_both_routes(
    client: openai.OpenAI, server: ServerProcess, fields: dict[str, Any], pattern: str
) -> None:
    for path, prompt in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": user("Hi")}),
    ):
        body = {**prompt, **fields, "max_tokens": 60, "temperature": 1, "seed": 3}
        status, answer = server.post(path, body)
        assert status == 200, answer
        choice = answer["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert re.fullmatch(pattern, text)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(["}, "guided_regex"),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_json": {"type": "nonsense"}}, "guided_json"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
        ({"response_format": schema_format({"type": 5})}, "response_format.json_schema.schema"),
        ({"tools": [CITY_TOOL], "guided_regex": "a"}, "guided_regex"),
        ({"tools": [CITY_TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice"),
        ({"tools": [CITY_TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.type"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be_are_refused_by_name(
    memorised: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    body = {"messages": user("Hi"), "max_tokens": 5, **fields}
    status, answer = memorised.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert (
        memorised.post("/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 1})[0] == 200
    )


@pytest.mark.parametrize("off", [True, False], ids=["plain", "thinking"])
def test_a_required_call_is_the_model_s_own_where_it_wants_to_call(
    talker: openai.OpenAI, off: bool
) -> None:
    expected = ("", PARIS, "" if off else "I need a tool.", "tool_calls")
    settings = {"off": off, "tool_choice": "required", "parallel_tool_calls": False}
    assert told(say_with_tools(talker, "Weather in Paris?", **settings)) == expected
    assert heard(say_with_tools(talker, "Weather in Paris?", stream=True, **settings)) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_comes_even_where_the_model_wants_none(
    talker: openai.OpenAI, stream: bool
) -> None:
    answer = say_with_tools(
        talker, "Hello", tools=[CITY_TOOL], tool_choice="required", stream=stream,
        parallel_tool_calls=False,
    )  # fmt: skip
    words, calls, _, finish = heard(answer) if stream else told(answer)
    assert (words, len(calls), finish) == ("", 1, "tool_calls")
    assert calls[0][0] == "pick_city"
    jsonschema.validate(json.loads(calls[0][1]), CITY_TOOL["function"]["parameters"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_function_is_called_and_no_other(talker: openai.OpenAI, stream: bool) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = say_with_tools(talker, "Weather in Paris?", tool_choice=choice, stream=stream)
    found = heard(answer) if stream else told(answer)
    assert found == ("", [("get_time", "{}")], "", "stop")


def test_with_tools_and_a_schema_the_model_may_call_or_answer_in_form(
    talker: openai.OpenAI,
) -> None:
    form = schema_format(SHORT_SCHEMA)
    called = told(say_with_tools(talker, "Weather in Paris?", response_format=form))
    assert called[1][:1] == PARIS
    content = told(
        say_with_tools(talker, "Hello", response_format=form, logit_bias={"151657": -100})
    )[0]
    jsonschema.validate(json.loads(content), SHORT_SCHEMA)


def test_nothing_is_left_in_the_pool_and_nothing_failed(memorised: ServerProcess) -> None:
    stats = memorised.get("/stats")[1]
    assert stats["num_used_gpu_blocks"] == 0
    assert "Traceback" not in memorised.log()
    assert "grammar failed" not in memorised.log()
