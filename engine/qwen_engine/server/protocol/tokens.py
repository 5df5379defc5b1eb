"""/tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_engine.server.protocol.chat import (
    Conversation,
    parse_conversation,
    parse_prompting,
    parse_template_variables,
)
from qwen_engine.server.protocol.content import MediaRef, parse_processor_settings
from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.server.protocol.tools import parse_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Either a text or messages."""

    model: str | None
    prompt: str | None
    messages: tuple[dict[str, Any], ...]
    media: tuple[MediaRef, ...]
    processor_settings: Mapping[str, Any] | None
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    tools: tuple[dict[str, Any], ...]
    template_variables: Mapping[str, Any]
    return_token_strs: bool


def parse_tokenize(body: object) -> TokenizeRequest:
    fields = Fields(body)
    model, prompt = fields.string("model"), fields.string("prompt")
    if (prompt is None) == (fields.value("messages") is None):
        raise fields.error("prompt", "or messages is needed, and not both")
    prompts, continues = parse_prompting(fields)
    conversation = parse_conversation(fields) if prompt is None else Conversation()
    return TokenizeRequest(
        model=model,
        prompt=prompt,
        messages=conversation.messages,
        media=conversation.media,
        processor_settings=parse_processor_settings(fields),
        add_special_tokens=fields.boolean("add_special_tokens", default=prompt is not None),
        add_generation_prompt=prompts,
        continue_final_message=continues,
        tools=parse_tools(fields).tools,
        template_variables=parse_template_variables(fields),
        return_token_strs=fields.boolean("return_token_strs"),
    )


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    model: str | None
    tokens: list[int]


def parse_detokenize(body: object) -> DetokenizeRequest:
    fields = Fields(body)
    model, tokens = fields.string("model"), fields.array("tokens")
    if tokens is None:
        raise fields.error("tokens", "is missing: an array of token ids is needed")
    for index, token in enumerate(tokens):
        if type(token) is not int:
            raise fields.error("tokens", f"must hold token ids: [{index}] is {describe(token)}")
    return DetokenizeRequest(model, tokens)
