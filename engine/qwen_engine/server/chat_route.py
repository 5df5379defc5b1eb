"""POST /v1/chat/completions."""

from __future__ import annotations

from aiohttp import web

from qwen_engine.server.answer import Answer
from qwen_engine.server.exchange import finished, new_request_id, response_headers, usage_of
from qwen_engine.server.failures import read_json
from qwen_engine.server.protocol.chat import ChatHead, ChatRequest, parse_chat
from qwen_engine.server.service import Ask, ModelService
from qwen_engine.server.state import STATE
from qwen_engine.server.stream import EventStream


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Parse, submit, respond."""
    service = request.app[STATE].require_service()
    chat = parse_chat(await read_json(request), service.recommended_sampling)
    model = service.check_name(chat.model)
    ask = await _prepare(service, chat)
    head = ChatHead(ask.request_id, service.now(), model)
    headers = response_headers(ask.request_id, chat.ignored)
    async with await service.submit(ask) as answer:
        if chat.streaming.stream:
            response = await _stream(EventStream(request, headers), chat, head, answer)
        else:
            text = await answer.text()
            body = head.completion(text, answer.finish(), usage_of([answer]))
            response = web.json_response(body, headers=headers)
        finished(request, ask.request_id, [answer])
    return response


async def _prepare(service: ModelService, chat: ChatRequest) -> Ask:
    prompt = await service.encode_chat(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables=chat.template_variables,
    )
    request_id = new_request_id("chatcmpl")
    return Ask(request_id, prompt, chat.sampling, "messages", chat.scheduling)


async def _stream(
    events: EventStream, chat: ChatRequest, head: ChatHead, answer: Answer
) -> web.StreamResponse:
    # With include_usage every chunk has the field, null in all but the extra last one.
    blank = {"usage": None} if chat.streaming.include_usage else {}
    async with events:
        first = {"role": "assistant", "content": ""}
        await events.send({**head.chunk(first), **blank})
        async for piece in answer.pieces():
            await events.send({**head.chunk({"content": piece}), **blank})
        await events.send({**head.chunk({}, answer.finish()), **blank})
        if chat.streaming.include_usage:
            await events.send(head.usage_chunk(usage_of([answer])))
    return events.response
