"""Thinking apart from answers, on the real path: real tokenizer and template, a model that thinks.

Covers API-001, -005, -011 and -013 of the reported cases, and text in several scripts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.models.dialogues import (
    CHINESE,
    CHINESE_THINKING,
    CODE,
    EMOJI,
    FRANCE,
    FRANCE_THINKING,
    user,
)
from tests.models.memorised import build_memorised

OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def say(client: openai.OpenAI, question: str, *, off: bool = False, **settings: Any) -> Any:
    extra = {**(OFF if off else {}), **settings.pop("extra_body", {})}
    fields = {"temperature": 0, "max_tokens": 200, "extra_body": extra, **settings}
    return client.chat.completions.create(model=NAME, messages=user(question), **fields)


def joined(chunks: Any) -> tuple[str, str]:
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return reasoning, "".join(delta.content or "" for delta in deltas)


CASES = [
    ("Capital of France?", False, FRANCE_THINKING, FRANCE),
    ("Capital of France?", True, "", "Paris."),
    ("法国的首都?", False, CHINESE_THINKING, CHINESE),
    ("Emoji?", True, "", EMOJI),
    ("Emoji?", False, EMOJI, EMOJI),
    ("Code?", True, "", CODE),
    ("Which character?", True, "", "It is \ufffd."),
    ("Think twice", False, "Once.", "Then <think> is a tag, </think> its end."),
]


@pytest.mark.parametrize(("question", "off", "reasoning", "content"), CASES)
def test_thinking_and_answer_come_apart_streamed_and_whole(
    talker: openai.OpenAI, question: str, off: bool, reasoning: str, content: str
) -> None:
    answer = say(talker, question, off=off)
    message = answer.choices[0].message
    assert (message.reasoning_content or "", message.content) == (reasoning, content)
    assert answer.choices[0].finish_reason == "stop"
    details = answer.usage.completion_tokens_details
    assert (details.reasoning_tokens > 0) == bool(reasoning)
    assert details.reasoning_tokens < answer.usage.completion_tokens
    assert joined(say(talker, question, off=off, stream=True)) == (reasoning, content)


def test_stop_strings_end_the_answer_and_not_the_thinking(talker: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = say(talker, "Capital of France?", stop=["9.8", " is P"], stream=stream)
        if stream:
            assert joined(answer) == (FRANCE_THINKING, "The capital of France")
        else:
            message = answer.choices[0].message
            assert message.reasoning_content == FRANCE_THINKING
            assert message.content == "The capital of France"
            assert answer.choices[0].model_dump()["stop_reason"] == " is P"


def test_a_stop_string_over_many_tokens_lets_nothing_of_itself_through(
    talker: openai.OpenAI,
) -> None:
    assert joined(say(talker, "ABC", off=True, stream=True)) == ("", "DEFGHIJKLMNOP")
    chunks = list(say(talker, "ABC", off=True, stream=True, stop=["DEFGHIJ"]))
    assert joined(chunks) == ("", "")
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("limit", range(1, 24))
def test_whatever_the_limit_no_piece_of_a_tag_is_shown(talker: openai.OpenAI, limit: int) -> None:
    whole = say(talker, "Capital of France?", max_tokens=limit)
    message = whole.choices[0].message
    reasoning, content = message.reasoning_content or "", message.content
    assert FRANCE_THINKING.startswith(reasoning)
    assert FRANCE.startswith(content)
    assert not content or reasoning == FRANCE_THINKING
    assert joined(say(talker, "Capital of France?", max_tokens=limit, stream=True)) == (
        reasoning,
        content,
    )


def test_every_token_of_a_thinking_answer_has_its_logprobs(talker: openai.OpenAI) -> None:
    answer = say(talker, "Capital of France?", logprobs=True)
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


def test_thinking_of_earlier_turns_is_taken_back_by_the_template(memorised: ServerProcess) -> None:
    turns = [*user("Hi"), {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}]
    counts = {}
    for name, messages in {"last": turns, "earlier": [*turns, *user("And?")]}.items():
        body = {"messages": messages, "add_generation_prompt": False, "return_token_strs": True}
        counts[name] = memorised.post("/tokenize", body)[1]["token_strs"].count("<think>")
    assert counts == {"last": 1, "earlier": 0}


def test_raw_completions_keep_the_tags(talker: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = talker.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=99)
    assert answer.choices[0].text == f"<think>\n{FRANCE_THINKING}\n</think>\n\n{FRANCE}"


@pytest.mark.parametrize(
    ("ending", "reasoning", "content"),
    [("<think>\\n", FRANCE_THINKING, FRANCE), ("<think>\\n\\n</think>\\n\\n", "", "Paris.")],
    ids=["opened", "closed"],
)
def test_a_template_that_opens_or_closes_the_thinking_itself_is_understood(
    start_server: Callable[..., ServerProcess],
    tmp_path: Path,
    ending: str,
    reasoning: str,
    content: str,
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
        "message.content + '<|im_end|>\\n' }}{%- endfor %}{{- '<|im_start|>assistant\\n"
        f"{ending}' }}}}"
    )
    server = start_server(
        str(build_memorised()), "--device", "cpu", "--dtype", "float32", "--max-model-len", "512",
        "--served-model-name", NAME, "--chat-template", str(template),
        "--num-gpu-blocks-override", "64", "--block-size", "16",
    ).wait_ready()  # fmt: skip
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert joined(say(client, "Capital of France?", stream=True)) == (reasoning, content)


def test_the_parser_can_be_turned_off(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(
        str(build_memorised()), "--device", "cpu", "--dtype", "float32", "--max-model-len", "512",
        "--served-model-name", NAME, "--reasoning-parser", "none",
        "--num-gpu-blocks-override", "64", "--block-size", "16",
    ).wait_ready()  # fmt: skip
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        message = say(client, "Capital of France?").choices[0].message
    assert message.content == f"<think>\n{FRANCE_THINKING}\n</think>\n\n{FRANCE}"
    assert "reasoning_content" not in message.model_dump()
