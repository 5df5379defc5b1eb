"""POST /v1/completions: one or several prompts, as text or as token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from qwen_engine.errors import RequestError
from qwen_engine.server.answer import Answer
from qwen_engine.server.exchange import finished, new_request_id, response_headers, usage_of
from qwen_engine.server.failures import read_json
from qwen_engine.server.protocol.bodies import usage_body
from qwen_engine.server.protocol.completions import (
    CompletionHead,
    CompletionRequest,
    Prompt,
    completion_choice,
    parse_completion,
)
from qwen_engine.server.service import Ask, ModelService
from qwen_engine.server.state import STATE
from qwen_engine.server.stream import EventStream

_ECHO_ONLY = {"finish_reason": "length", "stop_reason": None}


@dataclass(frozen=True, slots=True)
class _Part:
    """One prompt of the request: what is shown of it, and its answer unless only that was asked."""

    index: int
    ask: Ask
    echo: str
    answer: Answer | None

    def finish(self) -> dict[str, Any]:
        return self.answer.finish() if self.answer else _ECHO_ONLY

    async def text(self) -> str:
        return self.echo + (await self.answer.text() if self.answer else "")


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Parse, submit, respond."""
    state = request.app[STATE]
    service = state.require_service()
    wanted = parse_completion(await read_json(request), service.recommended_sampling)
    model = service.check_name(wanted.model)
    _refuse_too_many(wanted, state.engine.max_requests)
    request_id = new_request_id("cmpl")
    asks = await _prepare(service, wanted, request_id)
    head = CompletionHead(request_id, service.now(), model)
    headers = response_headers(request_id, wanted.ignored)
    async with AsyncExitStack() as stack:
        parts = await _submit(service, wanted, asks, stack)
        if wanted.streaming.stream:
            response = await _stream(EventStream(request, headers), wanted, head, parts)
        else:
            response = await _whole(head, parts, headers)
        finished(request, request_id, [part.answer for part in parts if part.answer])
    return response


def _refuse_too_many(wanted: CompletionRequest, limit: int) -> None:
    if len(wanted.prompts) > limit:
        raise RequestError(
            f"prompt has {len(wanted.prompts)} prompts, but this server takes at most {limit} at "
            "once (--max-num-seqs + --max-queue): send several requests",
            param="prompt",
        )


async def _prepare(service: ModelService, wanted: CompletionRequest, request_id: str) -> list[Ask]:
    """Tokenise all prompts and check them, so that none is started in vain."""
    asks = []
    for index, prompt in enumerate(wanted.prompts):
        param = "prompt" if len(wanted.prompts) == 1 else f"prompt[{index}]"
        ids = await _ids(service, wanted, prompt, param)
        name = f"{request_id}-{index}"
        ask = Ask(name, ids, wanted.sampling, param, wanted.scheduling)
        service.check_fits(ask)
        asks.append(ask)
    return asks


async def _ids(
    service: ModelService, wanted: CompletionRequest, prompt: Prompt, param: str
) -> list[int]:
    if isinstance(prompt, str):
        special = wanted.add_special_tokens
        return await service.encode(prompt, add_special_tokens=special, param=param)
    service.check_ids(prompt, param)
    return prompt


async def _submit(
    service: ModelService, wanted: CompletionRequest, asks: Sequence[Ask], stack: AsyncExitStack
) -> list[_Part]:
    parts = []
    for index, (ask, prompt) in enumerate(zip(asks, wanted.prompts, strict=True)):
        echo = await _echo(service, prompt) if wanted.echo else ""
        answer = None
        if not wanted.only_echo:
            answer = await stack.enter_async_context(await service.submit(ask))
        parts.append(_Part(index, ask, echo, answer))
    return parts


async def _echo(service: ModelService, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else await service.decode(prompt)


async def _whole(
    head: CompletionHead, parts: Sequence[_Part], headers: dict[str, str]
) -> web.Response:
    texts = await asyncio.gather(*(part.text() for part in parts))
    choices: list[Mapping[str, Any]] = [
        completion_choice(part.index, text, part.finish())
        for part, text in zip(parts, texts, strict=True)
    ]
    return web.json_response(head.completion(choices, _usage(parts)), headers=headers)


async def _stream(
    events: EventStream, wanted: CompletionRequest, head: CompletionHead, parts: Sequence[_Part]
) -> web.StreamResponse:
    # With include_usage every chunk has the field, null in all but the extra last one.
    blank = {"usage": None} if wanted.streaming.include_usage else {}

    async def send_part(part: _Part) -> None:
        if part.echo:
            await events.send({**head.chunk(part.index, part.echo), **blank})
        if part.answer is not None:
            async for piece in part.answer.pieces():
                await events.send({**head.chunk(part.index, piece), **blank})
        await events.send({**head.chunk(part.index, "", part.finish()), **blank})

    async with events:
        await asyncio.gather(*map(send_part, parts))
        if wanted.streaming.include_usage:
            await events.send(head.usage_chunk(_usage(parts)))
    return events.response


def _usage(parts: Sequence[_Part]) -> dict[str, Any]:
    if all(part.answer for part in parts):
        return usage_of([part.answer for part in parts if part.answer])
    prompt_tokens = sum(len(part.ask.prompt) for part in parts)
    return usage_body(prompt_tokens=prompt_tokens, completion_tokens=0, cached_tokens=0)
