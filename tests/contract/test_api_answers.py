"""Right requests: what the openai client gets from a real server.

Covers API-053 and -063 of the reported cases.
"""

import json
from typing import Any

import openai
import pytest

from tests.contract.conftest import MAX_MODEL_LEN, NAME
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import TOOLS

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def chat(client: openai.OpenAI, **settings: Any) -> Any:
    fields = {"messages": QUESTION, "temperature": 0, "max_tokens": 40, **settings}
    return client.chat.completions.create(model=NAME, **fields)


def joined(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_the_models_are_listed_with_their_length(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [NAME, "alias"]
    assert models[0].model_dump()["max_model_len"] == MAX_MODEL_LEN
    assert client.models.retrieve("alias").id == "alias"


def test_a_chat_is_answered_with_usage(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=5)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.model == NAME


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 7}, {"stop": ["e", "fox"]}])
def test_streamed_and_whole_answers_are_the_same_text(
    client: openai.OpenAI, settings: dict[str, Any]
) -> None:
    whole = chat(client, **settings).choices[0]
    chunks = list(chat(client, stream=True, **settings))
    assert joined(chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert chunks[0].choices[0].delta.role == "assistant"


def test_usage_comes_in_one_extra_chunk_and_is_null_in_the_others(client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all("usage" in chunk.model_fields_set for chunk in chunks)
    assert sum(1 for c in chunks if c.choices and c.choices[0].finish_reason) == 1


def test_without_being_asked_for_no_chunk_has_usage(client: openai.OpenAI) -> None:
    assert all("usage" not in chunk.model_fields_set for chunk in chat(client, stream=True))


def test_a_stop_string_ends_the_answer_before_itself_at_any_place(client: openai.OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    for choice in (chat(client, stop=stop).choices[0], chat(client, stop=[stop, "§§"]).choices[0]):
        assert choice.finish_reason == "stop"
        assert choice.message.content == whole[: whole.index(stop)]
        assert choice.model_dump()["stop_reason"] == stop


def test_nothing_of_a_stop_string_is_streamed(client: openai.OpenAI) -> None:
    whole = chat(client).choices[0].message.content
    stop = whole[4:12]
    assert joined(chat(client, stop=stop, stream=True)) == whole[: whole.index(stop)]


def test_a_seed_gives_the_same_answer_twice(client: openai.OpenAI) -> None:
    first, second, other = (
        chat(client, temperature=0.8, seed=seed).choices[0].message.content
        for seed in (123, 123, 4)
    )
    assert first == second != other


def test_extensions_of_vllm_are_taken(client: openai.OpenAI) -> None:
    extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    answer = chat(client, temperature=1.0, extra_body=extra)
    assert (
        answer.choices[0].message.content
        == chat(client, extra_body={"ignore_eos": True}).choices[0].message.content
    )


def test_max_completion_tokens_and_the_default_limit(client: openai.OpenAI) -> None:
    assert chat(client, max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3
    rest = chat(client, max_tokens=None, extra_body={"ignore_eos": True})
    assert rest.usage.total_tokens == MAX_MODEL_LEN


@pytest.mark.parametrize(
    "messages",
    [
        [*QUESTION, {"role": "assistant", "content": None}, *QUESTION],
        [*QUESTION, {"role": "assistant", "content": []}, *QUESTION],
        [*QUESTION, {"role": "system", "content": "Late."}],
        [{"role": "user", "content": [{"type": "text", "text": text} for text in ("Hi", "")]}],
        [{"role": "developer", "content": "Be short."}, *QUESTION],
        [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
         {"role": "tool", "tool_call_id": "1", "content": "ok"}],
    ],
)  # fmt: skip
def test_conversations_that_clients_send_are_accepted(
    client: openai.OpenAI, messages: list[Any]
) -> None:
    assert chat(client, messages=messages, max_tokens=2).choices


def test_completions_take_text_texts_ids_and_lists_of_ids(client: openai.OpenAI) -> None:
    def complete(prompt: Any, **settings: Any) -> Any:
        return client.completions.create(
            model=NAME, prompt=prompt, temperature=0, max_tokens=8, **settings
        )

    text = complete("The quick").choices[0].text
    several = complete(["The quick", "brown fox"])
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == text
    chunks = list(complete(["The quick", "brown fox"], stream=True))
    for choice in several.choices:
        own = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(piece.text for piece in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
    assert complete("The quick", echo=True).choices[0].text == "The quick" + text


def test_echo_without_new_tokens_gives_the_prompt_back(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="The fox", echo=True, max_tokens=0)
    assert answer.choices[0].text == "The fox"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_tokens_and_text_can_be_turned_into_each_other(server: ServerProcess) -> None:
    status, found = server.post("/tokenize", {"prompt": "The fox €", "return_token_strs": True})
    assert (status, found["count"]) == (200, len(found["tokens"]))
    assert len(found["token_strs"]) == found["count"]
    assert found["max_model_len"] == MAX_MODEL_LEN
    assert server.post("/detokenize", {"tokens": found["tokens"]}) == (200, {"prompt": "The fox €"})
    status, messages = server.post("/tokenize", {"messages": QUESTION})
    text = server.post("/detokenize", {"tokens": messages["tokens"]})[1]["prompt"]
    assert text.endswith("<|im_start|>assistant\n")


def test_tokens_of_a_chat_with_tools_are_those_that_the_chat_is_charged_for(
    memorised: ServerProcess,
) -> None:
    chat = {"messages": QUESTION, "tools": TOOLS}
    count = memorised.post("/tokenize", chat)[1]["count"]
    answer = memorised.post("/v1/chat/completions", {**chat, "max_tokens": 1})[1]
    assert answer["usage"]["prompt_tokens"] == count
    assert count > memorised.post("/tokenize", {"messages": QUESTION})[1]["count"]
    none = memorised.post("/tokenize", {**chat, "tool_choice": "none"})[1]["count"]
    assert none == memorised.post("/tokenize", {"messages": QUESTION})[1]["count"]


def test_tokens_of_a_message_that_is_to_be_continued(memorised: ServerProcess) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "It is"}]
    body = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False}
    ids = memorised.post("/tokenize", body)[1]["tokens"]
    text = memorised.post("/detokenize", {"tokens": ids})[1]["prompt"]
    assert text.endswith("It is")
    status, answer = memorised.post("/tokenize", {**body, "add_generation_prompt": True})
    assert (status, answer["error"]["param"]) == (400, "continue_final_message")


def test_tools_cannot_be_counted_for_a_model_without_them(server: ServerProcess) -> None:
    status, answer = server.post("/tokenize", {"messages": QUESTION, "tools": TOOLS})
    assert (status, answer["error"]["param"]) == (400, "tools")


def test_a_literal_replacement_character_comes_through(server: ServerProcess) -> None:
    ids = server.post("/tokenize", {"prompt": "a\ufffdb"})[1]["tokens"]
    assert server.post("/detokenize", {"tokens": ids})[1]["prompt"] == "a\ufffdb"


def test_fields_without_effect_are_named_in_a_header(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=NAME,
        messages=QUESTION,
        max_tokens=1,
        user="me",
        extra_body={"fo\r\no": 1, "top_k": 4},
    )
    assert raw.headers["x-ignored-fields"] == "user, fo??o"
    assert raw.headers["x-request-id"] == json.loads(raw.text)["id"]


def test_the_chat_page_and_its_files_are_served_without_help_from_elsewhere(
    server: ServerProcess,
) -> None:
    for path in ("/", "/chat.html", "/chat.css", "/chat.js", "/api.js", "/markdown.js"):
        status, body = server.get(path)
        assert status == 200
        assert body
    page = server.get("/chat.html")[1]
    assert "//cdn" not in page
    assert 'src="http' not in page


def test_version_and_health(server: ServerProcess) -> None:
    assert server.get("/version") == (200, {"version": "0.1.0"})
    assert server.get("/health") == (200, {"status": "ok"})
    assert server.get("/ready")[1]["status"] == "ready"
