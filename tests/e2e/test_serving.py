"""Users' side: an answer through the Service, and again after the engine was killed."""

import contextlib
import os
import signal

import openai
import pytest

from tests.cluster.polling import until
from tests.e2e.processes_of_pods import processes_of
from tests.e2e.served import AVAILABLE_SECONDS, Served

pytestmark = pytest.mark.root

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def _client(served: Served) -> openai.OpenAI:
    # no proxy from the environment between us and our own machine
    direct = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{served.url()}/v1", api_key="none", http_client=direct)


def _streamed_answer(served: Served) -> list[str]:
    with _client(served) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=64, stream=True
        )
        deltas = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
    return [delta for delta in deltas if delta]


def test_a_question_gets_its_true_answer_streamed_through_the_service(smollm2: Served) -> None:
    pieces = _streamed_answer(smollm2)
    assert "".join(pieces) == "The capital of France is Paris."
    assert len(pieces) > 3


def test_status_says_what_is_planned_and_what_is_free(smollm2: Served) -> None:
    def blocks() -> dict[str, int] | None:
        found: dict[str, int] | None = smollm2.status().get("blocks")
        return found

    plan = smollm2.status()["plan"]
    told = until(blocks, what="blocks in the status", within_seconds=40)
    assert told["free"] + told["used"] == told["total"] == plan["blocks"]["total"]
    ledger = sum(line["bytes"] for line in plan["ledger"])
    assert ledger == plan["device"]["memoryMiB"] << 20


def test_kubectl_get_shows_model_and_readiness_in_one_line(smollm2: Served) -> None:
    header, line = smollm2.kubectl("get", "qwen", "smollm2").splitlines()
    assert header.split()[:4] == ["NAME", "READY", "STATUS", "MODEL"]
    assert line.split()[:4] == ["smollm2", "1/1", "Serving", MODEL]


def test_a_killed_engine_is_restarted_and_available_again(smollm2: Served) -> None:
    (pod,) = smollm2.pods()
    pids = list(processes_of(pod, "qwen-engine"))
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    unavailable = smollm2.await_condition("Available", "False")
    assert unavailable["message"]
    smollm2.await_available()
    (same,) = smollm2.pods()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 1

    def answer() -> str:
        with contextlib.suppress(openai.APIConnectionError):
            return "".join(_streamed_answer(smollm2))
        return ""

    said = until(answer, what="an answer again", within_seconds=AVAILABLE_SECONDS)
    assert said == "The capital of France is Paris."
