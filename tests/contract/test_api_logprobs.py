"""Logprobs, echo, biases and several choices, from a real server.

The tiny server's context of 512 tokens runs in chunks of 128, so prompts are scored across chunks.
Covers API-055, -057, -061, -067 and -069 of the reported cases.
"""

import math
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.models.tiny import build_tiny

PROMPT = [(7 * n) % 380 + 3 for n in range(200)]  # longer than one chunk
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def complete(client: openai.OpenAI, **settings: Any) -> Any:
    fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, **settings}
    return client.completions.create(model=NAME, **fields)


def chat(client: openai.OpenAI, **settings: Any) -> Any:
    fields = {"messages": QUESTION, "temperature": 0, "max_tokens": 12, **settings}
    return client.chat.completions.create(model=NAME, **fields)


@pytest.fixture(scope="module")
def reference() -> Any:
    """What transformers says: the logprobs [num_tokens, vocab_size] of what follows each token."""
    model = AutoModelForCausalLM.from_pretrained(build_tiny("qwen3-tied"), dtype=torch.float32)

    def logprobs(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    return logprobs


def test_echo_with_logprobs_gives_the_model_s_own_for_every_token(
    client: openai.OpenAI, reference: Any
) -> None:
    complete(client)  # so that the prompt is in the prefix cache: it must be scored all the same
    choice = complete(client, echo=True, logprobs=3).choices[0]
    scores = choice.logprobs
    assert len(scores.tokens) == len(PROMPT) + 6 == len(scores.text_offset)
    assert scores.token_logprobs[0] is None
    assert scores.top_logprobs[0] is None
    expected = reference(PROMPT)
    chosen = [expected[place, token].item() for place, token in enumerate(PROMPT[1:])]
    assert scores.token_logprobs[1 : len(PROMPT)] == pytest.approx(chosen, abs=1e-4)
    first_answer = scores.top_logprobs[len(PROMPT)]
    best = expected[-1].topk(3).values.tolist()
    assert sorted(first_answer.values(), reverse=True) == pytest.approx(best, abs=1e-4)


def test_text_offsets_point_at_the_tokens_in_the_text(client: openai.OpenAI) -> None:
    prompt = "What is the capital of France? Ünïcode 东京 👍"
    choice = complete(client, prompt=prompt, echo=True, logprobs=0, max_tokens=4).choices[0]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if not token.startswith("bytes:") and not token.startswith("<|"):
            assert choice.text[offset : offset + len(token)] == token


def test_echo_without_new_tokens_gives_the_prompt_and_its_logprobs_only(
    client: openai.OpenAI,
) -> None:
    answer = complete(client, prompt="the lazy dog", echo=True, max_tokens=0, logprobs=1)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("the lazy dog", "length")
    assert answer.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert [value is None for value in choice.logprobs.token_logprobs].count(True) == 1


@pytest.mark.parametrize("max_tokens", [0, 8])
def test_a_streamed_echo_has_the_prompt_once_in_the_first_chunk_with_its_logprobs(
    server: ServerProcess, client: openai.OpenAI, max_tokens: int
) -> None:
    settings = {"prompt": "the lazy dog", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    whole = complete(client, **settings)
    chunks = [c.choices[0] for c in complete(client, stream=True, **settings)]
    assert "".join(chunk.text for chunk in chunks) == whole.choices[0].text
    assert chunks[0].text == "the lazy dog"
    assert len(chunks[0].logprobs.tokens) == whole.usage.prompt_tokens
    for field in ("tokens", "token_logprobs", "text_offset"):
        joined = [x for c in chunks if c.logprobs for x in getattr(c.logprobs, field)]
        assert joined == pytest.approx(getattr(whole.choices[0].logprobs, field))
    assert chunks[-1].finish_reason == whole.choices[0].finish_reason


def test_prompt_logprobs_have_ranks_and_start_with_null(
    client: openai.OpenAI, reference: Any
) -> None:
    answer = complete(client, extra_body={"prompt_logprobs": 2}).choices[0].model_dump()
    assert answer["logprobs"] is None
    first, *others = answer["prompt_logprobs"]
    assert first is None
    expected = reference(PROMPT)
    for place, (token, entry) in enumerate(zip(PROMPT[1:], others, strict=True)):
        of_token = entry[str(token)]
        value = expected[place, token]
        assert of_token["logprob"] == pytest.approx(value.item(), abs=1e-4)
        assert of_token["rank"] == pytest.approx((expected[place] > value).sum().item() + 1, abs=1)
        assert 2 <= len(entry) <= 3


def test_a_chat_has_them_beside_its_choices(client: openai.OpenAI) -> None:
    body = chat(client, extra_body={"prompt_logprobs": 0}).model_dump()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}, {"stop": ["e"]}])
def test_chat_logprobs_come_for_every_counted_token_streamed_or_whole(
    client: openai.OpenAI, settings: dict[str, Any]
) -> None:
    whole = chat(client, logprobs=True, top_logprobs=2, **settings)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    assert all(len(e.top_logprobs) == 2 and e.logprob <= 0 for e in entries)
    data = b"".join(bytes(entry.bytes) for entry in entries)
    assert data.decode(errors="replace").startswith(whole.choices[0].message.content)
    chunks = list(chat(client, logprobs=True, top_logprobs=2, stream=True, **settings))
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.token for e in streamed] == [e.token for e in entries]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in entries], abs=1e-4)


def test_logprobs_are_the_raw_ones_whatever_the_sampling(
    client: openai.OpenAI, reference: Any
) -> None:
    scores = complete(
        client, temperature=0.1, seed=1, logprobs=1, max_tokens=1, logit_bias={"7": 5},
        frequency_penalty=1,
    ).choices[0].logprobs  # fmt: skip
    best = reference(PROMPT)[-1].max().item()
    assert max(scores.top_logprobs[0].values()) == pytest.approx(best, abs=1e-4)


def test_without_being_asked_for_there_are_none(client: openai.OpenAI) -> None:
    assert complete(client).choices[0].logprobs is None
    assert chat(client).choices[0].logprobs is None


def test_a_bias_forces_or_bans_a_token(client: openai.OpenAI, reference: Any) -> None:
    best, second = reference(PROMPT)[-1].topk(2).indices.tolist()
    banned = complete(client, max_tokens=1, logit_bias={str(best): -100})
    forced = complete(client, max_tokens=1, logit_bias={str(second): 100})
    plain = complete(client, max_tokens=1)
    assert banned.choices[0].text == forced.choices[0].text != plain.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_n_choices_has_its_index_end_and_seed(client: openai.OpenAI, stream: bool) -> None:
    settings = {"temperature": 1.0, "seed": 5, "max_tokens": 10, "logprobs": True}
    alone = [
        chat(client, **{**settings, "seed": 5 + n}).choices[0].message.content for n in range(3)
    ]
    answer = chat(client, n=3, stream=stream, **settings)
    if not stream:
        texts = [choice.message.content for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.prompt_tokens == chat(client).usage.prompt_tokens
        assert answer.usage.completion_tokens == sum(
            len(choice.logprobs.content) for choice in answer.choices
        )
    else:
        texts, ends = ["", "", ""], [0, 0, 0]
        for chunk in answer:
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason is not None
        assert ends == [1, 1, 1]
    assert texts == alone
    assert len(set(texts)) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_best_of_above_n_is_n_answers_and_is_told(client: openai.OpenAI, stream: bool) -> None:
    raw = client.completions.with_raw_response.create(
        model=NAME, prompt="Hi", n=2, best_of=4, max_tokens=3, temperature=1.0, stream=stream
    )
    assert raw.headers["X-Ignored-Fields"] == "best_of"
    answer = raw.parse()
    chunks = answer if isinstance(answer, openai.Stream) else [answer]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    ends = sorted(choice.index for choice in choices if choice.finish_reason is not None)
    assert ends == sorted({choice.index for choice in choices}) == [0, 1]


def test_several_prompts_with_several_choices_are_in_order_of_prompts(
    client: openai.OpenAI,
) -> None:
    prompts = ["the fox", "the lazy dog"]
    answer = complete(client, prompt=prompts, n=2, echo=True, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.text.startswith(prompts[choice.index // 2])
    one = complete(client, prompt=prompts, max_tokens=3)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens


def test_no_logprob_is_beyond_json(server: ServerProcess) -> None:
    body = {"prompt": PROMPT, "logprobs": 20, "max_tokens": 3, "logit_bias": {"5": -100}}
    status, answer = server.post("/v1/completions", body)
    assert status == 200
    for tops in answer["choices"][0]["logprobs"]["top_logprobs"]:
        assert all(math.isfinite(value) for value in tops.values())


def test_nothing_is_left_in_the_pool(server: ServerProcess) -> None:
    stats = server.get("/stats")[1]
    assert stats["num_used_gpu_blocks"] == 0
    assert stats["num_free_gpu_blocks"] == stats["num_total_gpu_blocks"]
