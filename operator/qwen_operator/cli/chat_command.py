"""`kubectl qwen chat`: talk to the model of a QwenDeployment, through the API server.

Needs the right to `create services/proxy` (the built-in role `edit` has it). Not for production
traffic: every token passes the API server.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qwen_operator import names
from qwen_operator.cli.kubectl import Api, EngineError, Kubectl, proxy_path
from qwen_operator.cli.status_command import fetch

Json = Mapping[str, Any]
EPILOG = """\
examples:
  kubectl qwen chat smollm2 "What is the capital of France?"
  kubectl qwen chat smollm2                  a conversation; Ctrl-D ends it
  echo "Say hello" | kubectl qwen chat smollm2 -o json

exit codes: 0 it answered; 1 it did not; 2 wrong usage; 3 the cluster cannot be asked
"""
_SECONDS = 300.0  # between two tokens: a long prompt on a CPU takes its time
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's own flags."""
    add = parser.add_argument
    add("message", nargs="?", help="ask this and end (default: a conversation)")
    add("--system", metavar="TEXT", help="system message")
    add("--max-tokens", type=int, metavar="N", help="longest answer (default: the engine's)")
    add("--temperature", type=float, metavar="T", help="0 is greedy (default: the model's)")
    add("--no-thinking", action="store_true", help="ask a thinking model to answer at once")


def run(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    """Ask once, or hold a conversation; return the exit code."""
    resource = fetch(arguments, kubectl)
    model = resource["spec"]["model"]["id"]
    metadata = resource["metadata"]
    target = f"{metadata['name']}:{names.PORT_NAME}"
    path = proxy_path("services", metadata["namespace"], target, "/v1/chat/completions")
    history = [{"role": "system", "content": arguments.system}] if arguments.system else []
    with kubectl.api() as api:
        for message in _messages(arguments, model):
            history.append({"role": "user", "content": message})
            body = {"model": model, "messages": history, **_options(arguments)}
            try:
                answer = _ask(api, path, body, as_json=arguments.output == "json")
            except EngineError as error:
                print(f"kubectl qwen chat: {_explain(error, resource)}", file=sys.stderr)
                return 1
            history.append({"role": "assistant", "content": answer})
    return 0


def _messages(arguments: argparse.Namespace, model: str) -> Iterator[str]:
    """Yield the one message, or what is typed; what is piped in is one message."""
    if arguments.message is not None:
        yield arguments.message
    elif not sys.stdin.isatty():
        yield sys.stdin.read()
    else:
        print(f"{model}. Ctrl-D ends the conversation.")
        while True:
            try:
                if text := input("> ").strip():
                    yield text
            except EOFError:
                print()
                return


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
    }
    if arguments.no_thinking:
        found["chat_template_kwargs"] = {"enable_thinking": False}
    return {key: value for key, value in found.items() if value is not None}


def _ask(api: Api, path: str, body: dict[str, Any], *, as_json: bool) -> str:
    """Print an answer as it comes; return its text. Raises EngineError."""
    if as_json:
        whole = b"".join(api.post(path, body, seconds=_SECONDS))
        print(json.dumps(json.loads(whole), indent=2, ensure_ascii=False))
        return str(json.loads(whole)["choices"][0]["message"].get("content") or "")
    answer = ""
    for kind, text in _deltas(api.post(path, {**body, "stream": True}, seconds=_SECONDS)):
        if kind == "content":
            answer += text
            print(text, end="", flush=True)
        elif sys.stdout.isatty():
            print(f"{_DIM}{text}{_PLAIN}", end="", flush=True)
    print()
    return answer


def _deltas(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (content or reasoning_content, text) of server-sent events."""
    for line in lines:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if error := event.get("error"):
            raise EngineError(500, str(error.get("message", error)))
        for choice in event.get("choices", ()):
            for kind in ("reasoning_content", "content"):
                if text := choice["delta"].get(kind):
                    yield kind, text


def _explain(error: EngineError, resource: Json) -> str:
    """Say what an HTTP status means here."""
    name = resource["metadata"]["name"]
    if error.status == 503:
        why = next(
            (
                c["message"]
                for c in (resource.get("status") or {}).get("conditions", ())
                if c["type"] == "Available" and c["status"] != "True"
            ),
            str(error),
        )
        return f"{name} does not answer: {why}"
    if error.status == 401:
        return (
            f"{name} wants an API key, which the API server's proxy does not pass on: use "
            f"kubectl port-forward service/{name} 8000, and any OpenAI client"
        )
    return str(error)
