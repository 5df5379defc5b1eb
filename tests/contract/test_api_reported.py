"""Faults that users reported of other servers, by kind, where no other file has the kind.

Covers API-003, -009, -039, -041, -043, -045 and -051 of the reported cases.
"""

from typing import Any

import openai
import pytest

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.contract.test_api_reasoning import OFF, joined, say
from tests.models.dialogues import TOOLS, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "tool_calls": [CALL]}
TEXT = {"type": "text", "text": "a"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}


def post(server: ServerProcess, path: str, **fields: Any) -> tuple[int, Any]:
    prompt = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": user("Hi"), **OFF}
    return server.post(path, {**prompt, "max_tokens": 2, "temperature": 0, **fields})


# Shapes of messages


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": []}],
        [*user("Hi"), {**ASSISTANT, "content": []}, RESULT],
        [*user("Hi"), {**ASSISTANT, "content": None}, RESULT],
        [*user("Hi"), ASSISTANT, RESULT],
        [*user("Hi"), {**ASSISTANT, "content": ""}, {**RESULT, "content": []}],
        [*user("Hi"), {"role": "assistant", "content": [TEXT]}, *user("b")],
        [*user("Hi"), {"role": "system", "content": "Be brief."}],
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *user("Hi")],
        [{"role": "developer", "content": "Be brief."}, *user("Hi")],
        [{"role": "assistant", "content": "I begin."}],
    ],
)  # fmt: skip
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["", "tools"])
def test_histories_as_clients_keep_them_are_taken(
    memorised: ServerProcess, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    status, answer = post(memorised, CHAT, messages=messages, tools=tools)
    assert status == 200, answer


@pytest.mark.parametrize("messages", [[{"role": "tool", "content": None}], [{"role": "user"}]])
def test_what_no_template_could_show_is_refused(
    memorised: ServerProcess, messages: list[dict[str, Any]]
) -> None:
    status, answer = post(memorised, CHAT, messages=messages)
    assert (status, answer["error"]["param"]) == (400, "messages[0].content")


# Stop strings


@pytest.mark.parametrize("stop", [None, [], ["§"] * 12])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_stop_and_many_stops_are_taken(memorised: ServerProcess, path: str, stop: Any) -> None:
    assert post(memorised, path, stop=stop)[0] == 200


@pytest.mark.parametrize(
    ("stop", "said"), [([""], "1 to"), ("", "1 to"), ([f"{n}" for n in range(40)], "at most 32")]
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_empty_stop_and_too_many_are_refused_with_the_bound(
    memorised: ServerProcess, path: str, stop: Any, said: str
) -> None:
    status, answer = post(memorised, path, stop=stop)
    assert (status, answer["error"]["param"]) == (400, "stop")
    assert said in answer["error"]["message"]


@pytest.mark.parametrize("stop", ["J", "JK", "GHIJKL", "NOPQ", "P", "XYZ", "ABC"])
def test_streamed_and_whole_text_are_the_same_with_a_stop(talker: openai.OpenAI, stop: str) -> None:
    whole = say(talker, "ABC", off=True, stop=[stop]).choices[0]
    chunks = list(say(talker, "ABC", off=True, stop=[stop], stream=True))
    assert joined(chunks)[1] == whole.message.content == "DEFGHIJKLMNOP".partition(stop)[0]
    assert all(chunk.choices[0].delta.content != "" for chunk in chunks[1:-1])


# Fields that are known, and those that are not


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 2, "max_completion_tokens": 2}, None),
        (CHAT, {"n": 2, "logit_bias": {"5": 1}, "spaces_between_special_tokens": False}, None),
        (CHAT, {"user": "me", "metadata": {}}, {"user", "metadata"}),
        (COMPLETIONS, {"logprobs": 1, "best_of": 1, "echo": True}, None),
        (COMPLETIONS, {"max_completion_tokens": 2}, {"max_completion_tokens"}),
        (CHAT, {"structured_outputs": {"regex": "ab", "backend": "x"}},
         {"structured_outputs.backend"}),
    ],
)  # fmt: skip
def test_what_is_called_ignored_is_exactly_what_is(
    memorised: ServerProcess, path: str, fields: dict[str, Any], ignored: set[str] | None
) -> None:
    with openai.OpenAI(base_url=f"{memorised.url}/v1", api_key="none") as client:
        prompt = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": user("Hi")}
        body = {"model": NAME, **prompt, "max_tokens": 2, **fields}
        raw = client.post(path.removeprefix("/v1"), body=body, cast_to=openai.BaseModel,
                          options={"headers": {"X-Stainless-Raw-Response": "true"}})  # fmt: skip
    found = raw.headers.get("X-Ignored-Fields")
    assert (set(found.split(", ")) if found else None) == ignored


@pytest.mark.parametrize(("top_k", "status"), [(-1, 200), (0, 200), (1, 200), (-2, 400)])
def test_top_k_is_off_at_0_and_at_minus_1(
    memorised: ServerProcess, top_k: int, status: int
) -> None:
    found, answer = post(memorised, CHAT, top_k=top_k)
    assert found == status
    assert status == 200 or answer["error"]["param"] == "top_k"
