"""Requests of random fields and values: an answer or a 4xx, never a 5xx, and a whole pool."""

import random
from typing import Any

import pytest

from tests.contract.server_process import ServerProcess

NUM_REQUESTS = 250

_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}
_ODD: list[Any] = [None, True, False, 0, 1, -1, 2, 0.5, 1e9, -1e300, 10**40, "", "a", "\ud800", "5",
                   [], [1], ["a"], [[]], {}, {"a": 1}, {"type": "object"}]  # fmt: skip
# Values that mean something, so that combinations go deep.
_FIELDS: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 2], "top_p": [0.1, 1], "top_k": [-1, 0, 3], "min_p": [0, 0.2],
    "seed": [1, -5], "n": [1, 2, 3], "best_of": [1, 2], "stop": ["e", ["a", "b"]],
    "stop_token_ids": [[5], []], "min_tokens": [0, 2], "ignore_eos": [True],
    "presence_penalty": [1.5], "frequency_penalty": [-1], "repetition_penalty": [1.3],
    "logit_bias": [{"7": 100}, {"9": -100.0}, {"384": 1}], "logprobs": [True, 0, 3, 20],
    "top_logprobs": [0, 5], "prompt_logprobs": [0, 2], "echo": [True],
    "stream": [True], "stream_options": [{"include_usage": True}],
    "skip_special_tokens": [False], "spaces_between_special_tokens": [False],
    "include_stop_str_in_output": [True], "continue_final_message": [True],
    "add_generation_prompt": [False], "chat_template_kwargs": [{"enable_thinking": False}],
    "response_format": [{"type": "json_object"}, {"type": "text"}],
    "guided_json": [_SCHEMA], "guided_regex": ["[ab]{3}", "("], "guided_choice": [["x", "y"]],
    "guided_grammar": ['start: "a"'], "structured_outputs": [{"regex": "a+"}],
    "tools": [[_TOOL]], "tool_choice": ["none", "auto", "required"],
    "parallel_tool_calls": [False], "max_completion_tokens": [1, 4], "user": ["me"],
}  # fmt: skip


def make_request(source: random.Random) -> tuple[str, dict[str, Any]]:
    is_chat = source.random() < 0.5
    body: dict[str, Any] = {"max_tokens": source.choice([0, 1, 5, 12])}
    if is_chat:
        body["messages"] = [{"role": "user", "content": "What is the fox?"}]
    else:
        body["prompt"] = source.choice(["The fox", [5, 6, 7], ["a", "b"], [[1], [2, 3]]])
    for name in source.sample(sorted(_FIELDS), source.randint(0, 6)):
        is_odd = source.random() < 0.15
        body[name] = source.choice(_ODD if is_odd else _FIELDS[name])
    return "/v1/chat/completions" if is_chat else "/v1/completions", body


@pytest.mark.parametrize("seed", [1])
def test_no_request_breaks_the_server(
    server: ServerProcess, memorised: ServerProcess, seed: int
) -> None:
    source = random.Random(seed)
    statuses: list[int] = []
    for _ in range(NUM_REQUESTS):
        path, body = make_request(source)
        status, answer = source.choice([server, memorised]).post(path, body)
        assert status in (200, 400), (status, path, body, answer)
        if isinstance(answer, str):  # streamed
            assert answer.endswith("data: [DONE]\n\n"), (path, body, answer)
            assert 'data: {"error"' not in answer, (path, body, answer)
        statuses.append(status)
    assert min(statuses.count(200), statuses.count(400)) > NUM_REQUESTS / 10
    for each in (server, memorised):
        stats = each.get("/stats")[1]
        assert stats["num_used_gpu_blocks"] == 0
        assert stats["num_free_gpu_blocks"] == stats["num_total_gpu_blocks"]
        assert "Traceback" not in each.log()
