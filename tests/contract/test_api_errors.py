"""Wrong requests: a 4xx in OpenAI's form, no traceback, and the next request is served.

Covers API-047, -049 and -059 of the reported cases.
"""

import contextlib
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.contract.conftest import MAX_MODEL_LEN, NAME
from tests.contract.server_process import ServerProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def _the_engine_serves_the_next_request(server: ServerProcess) -> Any:
    yield
    status, answer = server.post(COMPLETIONS, {"prompt": "Hi", "max_tokens": 2})
    assert status == 200, answer
    assert "Traceback" not in server.log()


def check(answer: tuple[int, Any], status: int, param: str | None, *said: str) -> dict[str, Any]:
    """Assert that it is an error in OpenAI's form that names the field and says these things."""
    assert answer[0] == status, answer
    error: dict[str, Any] = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    for words in said:
        assert words in error["message"]
    assert "Traceback" not in error["message"]
    return error


def raw(server: ServerProcess, body: bytes, path: str = CHAT) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = json.loads(response.read())
    connection.close()
    return response.status, data


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"not json", b'{"messages": [}', b"\xff\xfe", b'{"a": 1} x', b"[" * 100_000,
     b'{"max_tokens": ' + b"9" * 5000 + b"}"],
    ids=lambda body: body[:12].decode(errors="replace"),
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_malformed_json(server: ServerProcess, body: bytes, path: str) -> None:
    check(raw(server, body, path), 400, None, "the request body")


@pytest.mark.parametrize("body", [[], "text", 5, None, [MESSAGES]])
def test_json_that_is_no_object(server: ServerProcess, body: Any) -> None:
    check(raw(server, json.dumps(body).encode()), 400, None, "object")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "Hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"top_k": -2}, "top_k"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 129}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"logit_bias": {"400": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"guided_regex": "(["}, "guided_regex"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_fields_are_named_whether_streamed_or_not(
    server: ServerProcess, fields: dict[str, Any], param: str, stream: bool
) -> None:
    if param == "stream_options" and stream:
        return  # right, then
    body = {"model": NAME, "messages": MESSAGES, "stream": stream, **fields}
    check(server.post(CHAT, body), 400, param, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize"])
def test_an_unknown_model(server: ServerProcess, path: str) -> None:
    body = {"model": "gpt-17", "messages": MESSAGES, "prompt": "Hi"}
    del body["prompt" if path == CHAT else "messages"]
    error = check(server.post(path, body), 404, "model", "gpt-17", NAME)
    assert error["code"] == "model_not_found"
    assert server.get("/v1/models/gpt-17")[0] == 404


def test_the_openai_client_raises_its_own_kinds_of_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-17", prompt="Hi")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=NAME, prompt="Hi", temperature=-1)


def test_a_prompt_and_limit_that_are_too_long_together_are_named_with_all_figures(
    server: ServerProcess,
) -> None:
    body = {"prompt": list(range(8)), "max_tokens": MAX_MODEL_LEN - 3}
    error = check(
        server.post(COMPLETIONS, body), 400, "max_tokens",
        f"{MAX_MODEL_LEN} tokens", "8 tokens", f"max_tokens is {MAX_MODEL_LEN - 3}",
    )  # fmt: skip
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, 3 * MAX_MODEL_LEN])
def test_a_prompt_that_is_too_long_by_itself(server: ServerProcess, length: int) -> None:
    body = {"prompt": [5] * length, "max_tokens": 1}
    check(server.post(COMPLETIONS, body), 400, "prompt", f"{length} tokens", str(MAX_MODEL_LEN))
    chat = {"messages": [{"role": "user", "content": "the fox " * length}]}
    check(server.post(CHAT, chat), 400, "messages", str(MAX_MODEL_LEN), "shorten the prompt")


def test_ten_megabytes_of_text_are_refused_without_being_tokenised(server: ServerProcess) -> None:
    chat = {"messages": [{"role": "user", "content": "a" * 10 * 2**20}]}
    check(server.post(CHAT, chat), 400, "messages", "at least")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([], "prompt"), ("", "prompt"), ([-1], "prompt"), ([10**9], "prompt"),
     ([[1], [384]], "prompt[1]"), ([1, "a"], "prompt[0]"), (5, "prompt"),
     ("\ud800", "prompt"), (["a"] * 5000, "prompt")],
    ids=lambda each: str(each)[:20],
)  # fmt: skip
def test_prompts_that_are_none(server: ServerProcess, prompt: Any, param: str) -> None:
    check(server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}), 400, param, "prompt")


def test_tokens_that_are_none(server: ServerProcess) -> None:
    check(server.post("/detokenize", {"tokens": [10**9]}), 400, "tokens", "token ids are 0 to")
    check(server.post("/detokenize", {"tokens": "abc"}), 400, "tokens", "array")


def test_a_body_of_a_hundred_megabytes(server: ServerProcess) -> None:
    size = 100 * 2**20
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode())
        with contextlib.suppress(OSError):  # refused before all was sent: the answer is there
            for _ in range(100):
                connection.sendall(b" " * 2**20)
        answer = connection.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 413")
    assert '"request_too_large"' in answer


def test_a_large_body_without_announced_length(server: ServerProcess) -> None:
    def pieces() -> Any:
        for _ in range(40):
            yield b" " * 2**20

    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    with contextlib.suppress(OSError):  # as above
        connection.request("POST", CHAT, pieces(), encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["code"] == "request_too_large"
    connection.close()


def test_unknown_paths_and_methods(server: ServerProcess) -> None:
    check(server.get("/v1/nothing"), 404, None, "/v1/nothing")
    check(server.get(CHAT), 405, None, "POST")
    check(server.get("/../../etc/passwd"), 404, None)


def test_a_lone_surrogate_in_a_message(server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "a\ud800b"}]}
    check(server.post(CHAT, body), 400, "messages", "surrogate")


def test_noise_instead_of_http(server: ServerProcess) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01\x00\xa5 this is no HTTP\r\n\r\n")
        assert connection.recv(65536).split(b" ")[1] == b"400"
