"""/v1/chat/completions: the request, and the bodies of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_engine.sequence import SchedulingParams
from qwen_engine.server.protocol.content import (
    MediaRef,
    parse_content,
    parse_processor_settings,
)
from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.server.protocol.logprobs import parse_chat_logprobs, parse_prompt_logprobs
from qwen_engine.server.protocol.sampling import Sampling, parse_sampling
from qwen_engine.server.protocol.scheduling import parse_scheduling
from qwen_engine.server.protocol.streaming import Streaming, parse_streaming
from qwen_engine.server.protocol.structured import parse_form
from qwen_engine.server.protocol.tools import ToolUse, parse_tools
from qwen_engine.server.protocol.unsupported import CHAT, refuse_unsupported
from qwen_engine.structured import Form

_ROLES = ("system", "developer", "user", "assistant", "tool")
# Parts of a message that templates know, passed on as they are.
_PASSED_ON = ("name", "tool_call_id", "reasoning_content")
# Arguments of the template call that are ours to give.
_RESERVED = frozenset({
    "conversation", "messages", "chat_template", "tokenize", "add_generation_prompt",
    "continue_final_message", "return_dict", "return_tensors", "tools", "documents", "padding",
    "truncation", "max_length", "tokenizer_kwargs", "return_assistant_tokens_mask",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    model: str | None
    messages: tuple[dict[str, Any], ...]
    media: tuple[MediaRef, ...]  # of all messages, in their order
    processor_settings: Mapping[str, Any] | None
    sampling: Sampling
    form: Form | None
    scheduling: SchedulingParams
    streaming: Streaming
    add_generation_prompt: bool
    continue_final_message: bool
    template_variables: Mapping[str, Any]
    tool_use: ToolUse
    ignored: tuple[str, ...]  # fields that were sent and have no effect


def parse_chat(body: object, recommended: Mapping[str, float]) -> ChatRequest:
    """Read the body of a request.

    Raises:
        RequestError: the first thing that is wrong, with the field's name.
    """
    fields = Fields(body)
    model = fields.string("model")
    conversation = parse_conversation(fields)
    limit = fields.integer("max_completion_tokens", low=1)
    older_limit = fields.integer("max_tokens", low=1)
    sampling = parse_sampling(
        fields,
        max_tokens=limit if limit is not None else older_limit,
        recommended=recommended,
        logprobs=parse_chat_logprobs(fields),
    )
    streaming = parse_streaming(fields)
    prompt_logprobs = parse_prompt_logprobs(fields, stream=streaming.stream)
    prompts, continues = parse_prompting(fields)
    tool_use = parse_tools(fields)
    form = parse_form(fields)
    refuse_unsupported(fields, CHAT)
    variables = parse_template_variables(fields)
    return ChatRequest(
        model=model,
        messages=conversation.messages,
        media=conversation.media,
        processor_settings=parse_processor_settings(fields),
        form=form,
        sampling=replace(sampling, prompt_logprobs=prompt_logprobs),
        scheduling=parse_scheduling(fields),
        streaming=streaming,
        add_generation_prompt=prompts,
        continue_final_message=continues,
        template_variables=variables,
        tool_use=tool_use,
        ignored=(*fields.ignored(), *streaming.ignored),
    )


def parse_prompting(fields: Fields) -> tuple[bool, bool]:
    """Read whether to add the beginning of an answer, or to go on with the last message."""
    continues = fields.boolean("continue_final_message")
    prompts = fields.boolean("add_generation_prompt", default=not continues)
    if continues and prompts:
        why = "cannot be true together with add_generation_prompt"
        raise fields.error("continue_final_message", why)
    return prompts, continues


def parse_template_variables(fields: Fields) -> Mapping[str, Any]:
    """Read chat_template_kwargs: variables of the model's template such as enable_thinking."""
    variables = fields.object("chat_template_kwargs") or {}
    taken = sorted(_RESERVED & variables.keys())
    if taken:
        raise fields.error("chat_template_kwargs", f"may not set {taken[0]}")
    return variables


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as templates take them, and the media that stand in them, in order."""

    messages: tuple[dict[str, Any], ...] = ()
    media: tuple[MediaRef, ...] = ()


def parse_conversation(fields: Fields) -> Conversation:
    messages = fields.array("messages")
    if messages is None:
        raise fields.error("messages", "is missing: an array of messages is needed")
    if not messages:
        raise fields.error("messages", "is empty: at least one message is needed")
    media: list[MediaRef] = []
    parsed = tuple(
        _parse_message(Fields(message, f"messages[{index}]"), media)
        for index, message in enumerate(messages)
    )
    return Conversation(parsed, tuple(media))


def _parse_message(fields: Fields, media: list[MediaRef]) -> dict[str, Any]:
    """Read one message; its media are added to the list."""
    role = fields.string("role")
    if role not in _ROLES:
        raise fields.error("role", f"must be one of {', '.join(_ROLES)}, not {describe(role)}")
    # Templates know "system" only; OpenAI's newer name means the same.
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    is_own = role == "assistant"
    message["content"], found = parse_content(fields, is_optional=is_own, takes_media=not is_own)
    media += found
    if role == "assistant" and fields.array("tool_calls"):
        message["tool_calls"] = _parse_tool_calls(fields)
    for name in _PASSED_ON:
        if (value := fields.string(name)) is not None:
            message[name] = value
    if (thinking := fields.string("reasoning")) is not None:  # vLLM's newer name
        message.setdefault("reasoning_content", thinking)
    return message


def _parse_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Read the calls of an earlier turn; templates want the arguments as an object."""
    calls = []
    for index, call in enumerate(fields.array("tool_calls") or []):
        outer = Fields(call, f"{fields.param('tool_calls')}[{index}]")
        function = Fields(outer.value("function"), outer.param("function"))
        name = function.string("name")
        if name is None:
            raise function.error("name", "is missing")
        arguments = _parse_arguments(function.value("arguments"))
        found = {"type": "function", "function": {"name": name, "arguments": arguments}}
        if (call_id := outer.string("id")) is not None:
            found["id"] = call_id
        calls.append(found)
    return calls


def _parse_arguments(value: object) -> object:
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict) else value


@dataclass(frozen=True, slots=True)
class ChatHead:
    """What every body of one answer repeats."""

    request_id: str
    created: int  # Unix seconds
    model: str

    def completion(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the whole answer."""
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    def chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return one piece of a streamed answer."""
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def chat_choice(
    index: int,
    message: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None,
    finish: Mapping[str, Any],
) -> dict[str, Any]:
    """Return one choice of a whole answer; `finish` has finish_reason and stop_reason."""
    return {"index": index, "message": message, "logprobs": logprobs, **finish}


def chat_delta(
    index: int,
    delta: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None = None,
    finish: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one choice of a chunk; the last one of each index has `finish`."""
    end = finish or {"finish_reason": None}
    return {"index": index, "delta": delta, "logprobs": logprobs, **end}
