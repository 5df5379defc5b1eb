"""Paths that OpenAI's clients know and that this server does not have: each refused by name."""

from typing import Any

import openai
import pytest

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/embeddings", "embeddings are not made here"),
        ("/v1/audio/speech", "audio"),
        ("/v1/audio/transcriptions", "audio"),
        ("/v1/images/generations", "images are not made here"),
        ("/v1/images/edits", "images"),
        ("/v1/moderations", "moderated"),
        ("/v1/responses", "use /v1/chat/completions"),
        ("/v1/responses/resp_1/cancel", "use /v1/chat/completions"),
        ("/v1/batches", "send the requests at once"),
        ("/v1/files", "keeps nothing"),
        ("/v1/fine_tuning/jobs", "trained"),
        ("/v1/rerank", "ranked"),
        ("/v1/messages", "Anthropic"),
        ("/v1/v1/chat/completions", 'has to end in "/v1", once'),
        ("/chat/completions", 'has to end in "/v1", once'),
        ("/v1/embeddingsx", "there is nothing at /v1/embeddingsx"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_served_here_is_named_with_the_way_out(
    server: ServerProcess, path: str, said: str, method: str
) -> None:
    body = {"model": NAME, "input": "Hi"}
    status, answer = server.get(path) if method == "GET" else server.post(path, body)
    assert status == 404
    error: dict[str, Any] = answer["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    assert said in error["message"]


def test_the_openai_client_shows_the_sentence(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="embeddings are not made here"):
        client.embeddings.create(model=NAME, input="Hi")
    with pytest.raises(openai.NotFoundError, match="use /v1/chat/completions"):
        client.responses.create(model=NAME, input="Hi")
    with pytest.raises(openai.NotFoundError, match="images are not made here"):
        client.images.generate(model=NAME, prompt="a fox")
    with pytest.raises(openai.NotFoundError, match="audio"):
        client.audio.speech.create(model=NAME, input="Hi", voice="alloy")
