"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from qwen_engine.errors import RequestError
from qwen_engine.parsing.reasoning import message_opens_thinking, prompt_opens_thinking
from qwen_engine.sequence import TokenLogprobs
from qwen_engine.server.answer import Answer, Piece
from qwen_engine.server.exchange import finished, new_request_id, response_headers, usage_of
from qwen_engine.server.failures import read_json
from qwen_engine.server.protocol.chat import (
    ChatHead,
    ChatRequest,
    chat_choice,
    chat_delta,
    parse_chat,
)
from qwen_engine.server.scores import Scored, chat_body, prompt_body, scored_prompt
from qwen_engine.server.service import Ask, ModelService
from qwen_engine.server.state import STATE
from qwen_engine.server.stream import EventStream
from qwen_engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Choice:
    """One answer among the n that were asked for."""

    index: int
    ask: Ask
    answer: Answer
    tokenizer: Tokenizer

    async def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        piece = await self.answer.whole()
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if self.ask.is_thinking is not None:
            message["reasoning_content"] = piece.reasoning or None
        logprobs = self._logprobs(piece.logprobs)
        return chat_choice(self.index, message, logprobs, self.answer.finish())

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the choice piece by piece."""
        yield chat_delta(self.index, {"role": "assistant", "content": ""})
        async for piece in self.answer.pieces():
            logprobs = self._logprobs(piece.logprobs)
            yield chat_delta(self.index, _delta(piece), logprobs)
        yield chat_delta(self.index, {}, None, self.answer.finish())

    async def scored_prompt(self) -> list[Scored]:
        return scored_prompt(self.ask.prompt, await self.answer.prompt_logprobs())

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.ask.sampling.logprobs is None:
            return None
        return chat_body(self.tokenizer, entries)


def _delta(piece: Piece) -> dict[str, Any]:
    if not piece.reasoning:
        return {"content": piece.text}
    return {"reasoning_content": piece.reasoning, **({"content": piece.text} if piece.text else {})}


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Parse, submit, respond."""
    state = request.app[STATE]
    service = state.require_service()
    chat = parse_chat(await read_json(request), service.recommended_sampling)
    model = service.check_name(chat.model)
    _refuse_too_many(chat, state.engine.max_requests)
    ask = await _prepare(service, chat)
    head = ChatHead(ask.request_id, service.now(), model)
    headers = response_headers(ask.request_id, chat.ignored)
    async with AsyncExitStack() as stack:
        choices = await _submit(service, ask, stack)
        if chat.streaming.stream:
            response = await _stream(EventStream(request, headers), chat, head, choices)
        else:
            response = web.json_response(await _whole(chat, head, choices), headers=headers)
        finished(request, ask.request_id, [choice.answer for choice in choices])
    return response


def _refuse_too_many(chat: ChatRequest, limit: int) -> None:
    if chat.sampling.num_choices > limit:
        why = f"must be at most {limit} on this server (--max-num-seqs + --max-queue)"
        raise RequestError(f"n {why}", param="n")


async def _prepare(service: ModelService, chat: ChatRequest) -> Ask:
    text = await service.render_chat(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables=chat.template_variables,
    )
    return Ask(
        new_request_id("chatcmpl"),
        await service.encode_rendered(text),
        chat.sampling,
        "messages",
        is_thinking=_begins_thinking(chat, text) if service.knows_thinking else None,
    )


def _begins_thinking(chat: ChatRequest, prompt: str) -> bool:
    if chat.continue_final_message:
        return message_opens_thinking(chat.messages[-1]["content"])
    return prompt_opens_thinking(prompt)


async def _submit(service: ModelService, ask: Ask, stack: AsyncExitStack) -> list[_Choice]:
    choices = []
    for index, each in enumerate(ask.choices()):
        answer = await stack.enter_async_context(await service.submit(each))
        choices.append(_Choice(index, each, answer, service.tokenizer))
    return choices


async def _whole(chat: ChatRequest, head: ChatHead, choices: Sequence[_Choice]) -> dict[str, Any]:
    wanted = chat.sampling.prompt_logprobs
    scored = [] if wanted is None else await choices[0].scored_prompt()
    bodies = await asyncio.gather(*(choice.whole() for choice in choices))
    body = head.completion(bodies, _usage(choices))
    if wanted is None:
        return body
    return {**body, "prompt_logprobs": prompt_body(choices[0].tokenizer, scored, wanted)}


async def _stream(
    events: EventStream, chat: ChatRequest, head: ChatHead, choices: Sequence[_Choice]
) -> web.StreamResponse:
    # With include_usage every chunk has the field, null in all but the extra last one.
    blank = {"usage": None} if chat.streaming.include_usage else {}

    async def send_choice(choice: _Choice) -> None:
        async for delta in choice.chunks():
            await events.send({**head.chunk(delta), **blank})

    async with events:
        await asyncio.gather(*map(send_choice, choices))
        if chat.streaming.include_usage:
            await events.send(head.usage_chunk(_usage(choices)))
    return events.response


def _usage(choices: Sequence[_Choice]) -> dict[str, Any]:
    return usage_of([choice.answer for choice in choices], num_choices=len(choices))
