"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from aiohttp import web

from qwen_engine.errors import RequestError
from qwen_engine.server.ask import Ask
from qwen_engine.server.body import read_body
from qwen_engine.server.chat_choice import ChatChoice
from qwen_engine.server.exchange import (
    finished,
    new_request_id,
    read_deadline,
    response_headers,
    until,
    usage_of,
)
from qwen_engine.server.protocol.chat import (
    ChatHead,
    ChatRequest,
    parse_chat,
)
from qwen_engine.server.protocol.content import text_of
from qwen_engine.server.scores import prompt_body
from qwen_engine.server.service import ModelService
from qwen_engine.server.state import STATE
from qwen_engine.server.stream import EventStream
from qwen_engine.server.together import together
from qwen_engine.structured import Thinking, thinking_at_start


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Parse, submit, respond."""
    state = request.app[STATE]
    service = state.require_service()
    deadline = read_deadline(request)
    recommended = service.recommended_sampling
    chat = await read_body(request, lambda body: parse_chat(body, recommended))
    model = service.check_name(chat.model)
    _refuse_too_many(chat, state.engine.max_requests)
    state.metrics.asked(chat.sampling.num_choices)
    state.engine.require_open()  # before anything is fetched for it
    async with until(deadline):
        ask = replace(await _prepare(service, chat), deadline=deadline)
    chat = replace(chat, media=())  # megabytes, which the answer needs no more
    head = ChatHead(ask.request_id, service.now(), model)
    headers = response_headers(ask.request_id, chat.ignored)
    async with AsyncExitStack() as stack:
        choices = await _submit(service, ask, chat, stack)
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
    tools = chat.tool_use
    if tools.tools:
        service.require_tools(is_choice=tools.required is None)
    calls = tools.possible if chat.form is not None else tools.required
    grammar = await service.compile(chat.form, calls)
    media = await service.read_media(chat.media, chat.processor_settings)
    text = await service.render_chat(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables=chat.template_variables,
        tools=chat.tool_use.tools,
    )
    thinking = Thinking.CLOSED
    if service.knows_thinking:
        last = text_of(chat.messages[-1]["content"]) if chat.continue_final_message else None
        thinking = thinking_at_start(text, continued=last)
    prompt = await service.encode_rendered(text, media)
    return Ask(
        new_request_id("chatcmpl"),
        prompt.token_ids,
        chat.sampling,
        "messages",
        chat.scheduling,
        is_thinking=thinking is Thinking.OPEN if service.knows_thinking else None,
        grammar=grammar,
        thinking=thinking,
        media=prompt,
    )


async def _submit(
    service: ModelService, ask: Ask, chat: ChatRequest, stack: AsyncExitStack
) -> list[ChatChoice]:
    choices = []
    for index, each in enumerate(ask.choices()):
        answer = await stack.enter_async_context(await service.submit(each))
        choice = ChatChoice(
            index, each, answer=answer, tokenizer=service.tokenizer, tool_use=chat.tool_use
        )
        choices.append(choice)
    return choices


async def _whole(
    chat: ChatRequest, head: ChatHead, choices: Sequence[ChatChoice]
) -> dict[str, Any]:
    wanted = chat.sampling.prompt_logprobs
    scored = [] if wanted is None else await choices[0].scored_prompt()
    bodies = await together(choice.whole() for choice in choices)
    body = head.completion(bodies, _usage(choices))
    if wanted is None:
        return body
    return {**body, "prompt_logprobs": prompt_body(choices[0].tokenizer, scored, wanted)}


async def _stream(
    events: EventStream, chat: ChatRequest, head: ChatHead, choices: Sequence[ChatChoice]
) -> web.StreamResponse:
    # With include_usage every chunk has the field, null in all but the extra last one.
    blank = {"usage": None} if chat.streaming.include_usage else {}

    async def send_choice(choice: ChatChoice) -> None:
        async for delta in choice.chunks():
            await events.send({**head.chunk(delta), **blank})

    async with events:
        await together(map(send_choice, choices))
        if chat.streaming.include_usage:
            await events.send(head.usage_chunk(_usage(choices)))
    return events.response


def _usage(choices: Sequence[ChatChoice]) -> dict[str, Any]:
    return usage_of([choice.answer for choice in choices], num_choices=len(choices))
