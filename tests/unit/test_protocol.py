"""OpenAI's JSON → dataclasses: what is accepted, and how what is not is named."""

import json
from typing import Any

import pytest

from qwen_engine.errors import RequestError
from qwen_engine.server.protocol.chat import parse_chat
from qwen_engine.server.protocol.completions import parse_completion
from qwen_engine.server.protocol.sampling import MAX_STOPS
from qwen_engine.server.protocol.tokens import parse_detokenize, parse_tokenize

USER = {"role": "user", "content": "Hi"}
NOTHING: dict[str, float] = {}


def chat(**fields: Any) -> Any:
    return parse_chat({"messages": [USER], **fields}, NOTHING)


def refused(body: object, parse: Any = parse_chat) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body, NOTHING)
    return caught.value


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop": [str(n) for n in range(MAX_STOPS + 1)]}, "stop"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"priority": "high"}, "priority"),
    ({"priority": 2**31}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"cache_salt": ["a"]}, "cache_salt"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"model": 5}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].image_url.url"),
    ({"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": {}}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,", "detail": "fine"}}]}]},
     "messages[0].content[0].image_url.detail"),
    ({"messages": [{"role": "user", "content": [{"type": "video", "video": "data:,"}]}]},
     "messages[0].content[0].video"),
    ({"messages": [{"role": "user", "content": [{"type": "video", "video": ["", 5]}]}]},
     "messages[0].content[0].video[1]"),
    ({"messages": [USER, {"role": "assistant", "content": [
        {"type": "image_url", "image_url": "data:,"}]}]}, "messages[1].content[0].type"),
    ({"mm_processor_kwargs": 5}, "mm_processor_kwargs"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"n": True}, "n"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
     "response_format.json_schema.schema"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_choice": ["a", 5]}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_grammar": 5}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    ({"spaces_between_special_tokens": "no"}, "spaces_between_special_tokens"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG_FIELDS, ids=lambda each: str(each)[:40])
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused({"messages": [USER], **fields})
    assert error.param == param
    assert param in str(error)


@pytest.mark.parametrize("body", [None, 5, "text", [], [USER]])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert "object" in str(refused(body))


NEUTRAL: list[dict[str, Any]] = [
    {"n": 1}, {"n": 1.0}, {"logprobs": False}, {"top_logprobs": 0}, {"tools": []},
    {"tool_choice": "none"}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}},
    {"logit_bias": {}}, {"logit_bias": None}, {"best_of": 1}, {"functions": []},
    {"stop": None}, {"stop": []}, {"top_k": -1}, {"top_k": 0}, {"max_tokens": 16.0},
    {"max_tokens": None}, {"temperature": None}, {"stream_options": None}, {"seed": -1},
    {"length_penalty": 1.0}, {"modalities": ["text"]},
]  # fmt: skip


@pytest.mark.parametrize("fields", NEUTRAL, ids=str)
def test_a_field_that_asks_for_nothing_is_accepted_and_not_called_ignored(
    fields: dict[str, Any],
) -> None:
    assert chat(**fields).ignored == ()


def test_exactly_the_fields_without_effect_are_listed_as_ignored() -> None:
    wanted = chat(
        user="me", metadata={}, foo=1, top_k=5, stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    )  # fmt: skip
    assert wanted.ignored == ("user", "metadata", "foo", "stream_options.include_obfuscation")


def test_the_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert chat(max_tokens=5).sampling.max_tokens == 5
    assert chat().sampling.max_tokens is None


def test_what_a_request_leaves_out_comes_from_the_models_recommendation() -> None:
    recommended = {"temperature": 0.6, "top_k": 20.0}
    wanted = parse_chat({"messages": [USER], "temperature": 0}, recommended)
    assert (wanted.sampling.temperature, wanted.sampling.top_k) == (0.0, 20)


def test_null_and_empty_content_of_an_assistant_is_empty_text() -> None:
    for content in (None, [], ""):
        wanted = chat(messages=[USER, {"role": "assistant", "content": content}, USER])
        assert wanted.messages[1] == {"role": "assistant", "content": ""}


def test_earlier_tool_calls_reach_the_template_with_their_arguments_as_an_object() -> None:
    function = {"name": "add", "arguments": json.dumps({"a": 1})}
    call = {"id": "c1", "type": "function", "function": function}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]}
    messages = chat(messages=[USER, assistant, tool]).messages
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert messages[2] == {"role": "tool", "content": "2", "tool_call_id": "c1"}


def test_parts_of_text_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = chat(messages=[{"role": "developer", "content": parts}, USER]).messages
    assert messages[0] == {"role": "system", "content": "one\ntwo"}


def test_a_value_in_an_error_is_cut() -> None:
    assert len(str(refused({"messages": [USER], "temperature": "x" * 10**6}))) < 200


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("Hi", ("Hi",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)), ([[1], [2]], ([1], [2]))],
)
def test_a_prompt_may_be_text_texts_ids_or_lists_of_ids(prompt: object, prompts: object) -> None:
    assert parse_completion({"prompt": prompt}, NOTHING).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(None, "prompt"), ([], "prompt"), (5, "prompt"), ([1, "a"], "prompt[0]"),
     (["a", 1], "prompt[1]"), ([[1.5]], "prompt[0]"), ([True], "prompt[0]"), ({}, "prompt")],
)  # fmt: skip
def test_any_other_prompt_is_refused(prompt: object, param: str) -> None:
    assert refused({"prompt": prompt}, parse_completion).param == param


def test_completions_default_to_sixteen_tokens_and_zero_is_for_echo_only() -> None:
    assert parse_completion({"prompt": "a"}, NOTHING).sampling.max_tokens == 16
    echo = parse_completion({"prompt": "a", "echo": True, "max_tokens": 0}, NOTHING)
    assert echo.only_echo
    assert refused({"prompt": "a", "max_tokens": 0}, parse_completion).param == "max_tokens"


def test_tokenize_takes_a_text_or_messages_but_not_both() -> None:
    assert parse_tokenize({"prompt": "a"}).add_special_tokens
    assert not parse_tokenize({"messages": [USER]}).add_special_tokens
    for body in ({}, {"prompt": "a", "messages": [USER]}):
        with pytest.raises(RequestError, match="prompt"):
            parse_tokenize(body)


def test_detokenize_takes_ids_only() -> None:
    assert parse_detokenize({"tokens": [1, 2]}).tokens == [1, 2]
    for tokens in (None, "1", [1.5], [True]):
        with pytest.raises(RequestError, match="tokens"):
            parse_detokenize({"tokens": tokens})


@pytest.mark.parametrize("parse", [chat, lambda **fields: parse_completion(fields, NOTHING)])
def test_priority_and_salt_reach_the_engine_as_they_are(parse: Any) -> None:
    fields = {"prompt": "Hi", "priority": -3, "cache_salt": "tenant é"}
    scheduling = parse(**fields).scheduling
    assert (scheduling.priority, scheduling.cache_salt) == (-3, "tenant é")


def test_without_them_a_request_has_priority_0_and_shares_with_all() -> None:
    scheduling = chat(priority=None, cache_salt=None).scheduling
    assert (scheduling.priority, scheduling.cache_salt) == (0, None)
