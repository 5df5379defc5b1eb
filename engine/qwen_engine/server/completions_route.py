"""POST /v1/completions: one or several prompts, as text or as token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from qwen_engine.errors import RequestError
from qwen_engine.server.answer import Answer
from qwen_engine.server.ask import Ask
from qwen_engine.server.body import read_body
from qwen_engine.server.exchange import (
    finished,
    new_request_id,
    read_deadline,
    response_headers,
    until,
    usage_of,
)
from qwen_engine.server.protocol.bodies import usage_body
from qwen_engine.server.protocol.completions import (
    CompletionHead,
    CompletionRequest,
    Prompt,
    completion_choice,
    parse_completion,
)
from qwen_engine.server.scores import (
    CompletionScores,
    Scored,
    prompt_body,
    scored,
    scored_prompt,
)
from qwen_engine.server.service import ModelService
from qwen_engine.server.state import STATE
from qwen_engine.server.stream import EventStream
from qwen_engine.server.together import together

_ECHO_ONLY = {"finish_reason": "length", "stop_reason": None}


@dataclass(frozen=True, slots=True)
class _Part:
    """One choice: what is shown of its prompt, and its answer unless only that was asked."""

    index: int
    ask: Ask
    echo: str
    answer: Answer | None
    scores: CompletionScores
    wanted: CompletionRequest

    def finish(self) -> dict[str, Any]:
        return self.answer.finish() if self.answer else _ECHO_ONLY

    async def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        if self.answer is None:
            return completion_choice(self.index, self.echo, None, self.finish())
        prompt = await self._scored_prompt(self.answer)
        piece = await self.answer.whole()
        shown = prompt if self.wanted.echo else []
        logprobs = self._logprobs([*shown, *scored(piece.logprobs)])
        choice = completion_choice(self.index, self.echo + piece.text, logprobs, self.finish())
        if self.wanted.prompt_logprobs is None:
            return choice
        body = prompt_body(self.scores.tokenizer, prompt, self.wanted.prompt_logprobs)
        return {**choice, "prompt_logprobs": body}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the choice piece by piece: the prompt first, if it is wanted."""
        if self.wanted.echo:
            prompt = await self._scored_prompt(self.answer) if self.answer else []
            yield completion_choice(self.index, self.echo, self._logprobs(prompt))
        if self.answer is not None:
            async for piece in self.answer.pieces():
                logprobs = self._logprobs(scored(piece.logprobs))
                yield completion_choice(self.index, piece.text, logprobs)
        yield completion_choice(self.index, "", None, self.finish())

    async def _scored_prompt(self, answer: Answer) -> list[Scored]:
        if self.ask.sampling.prompt_logprobs is None:
            return []
        return scored_prompt(self.ask.prompt, await answer.prompt_logprobs())

    def _logprobs(self, entries: Sequence[Scored]) -> dict[str, Any] | None:
        return None if self.ask.sampling.logprobs is None else self.scores.body(entries)


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Parse, submit, respond."""
    state = request.app[STATE]
    service = state.require_service()
    deadline = read_deadline(request)
    recommended = service.recommended_sampling
    wanted = await read_body(request, lambda body: parse_completion(body, recommended))
    model = service.check_name(wanted.model)
    _refuse_too_many(wanted, state.engine.max_requests)
    state.metrics.asked(wanted.sampling.num_choices)
    request_id = new_request_id("cmpl")
    state.engine.require_open()  # before anything is fetched for it
    async with until(deadline):
        prepared = await _prepare(service, wanted, request_id)
    wanted = replace(wanted, media=())  # megabytes, which the answer needs no more
    asks = [replace(ask, deadline=deadline) for ask in prepared]
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
    number = len(wanted.prompts) * wanted.sampling.num_choices
    if number > limit:
        raise RequestError(
            f"prompt and n ask for {number} answers, but this server takes at most {limit} at "
            "once (--max-num-seqs + --max-queue): send several requests",
            param="prompt" if len(wanted.prompts) > 1 else "n",
        )


async def _prepare(service: ModelService, wanted: CompletionRequest, request_id: str) -> list[Ask]:
    """Tokenise all prompts and check them, so that none is started in vain."""
    asks = []
    grammar = await service.compile(wanted.form)
    media = await service.read_media(wanted.media, wanted.processor_settings)
    for index, prompt in enumerate(wanted.prompts):
        param = "prompt" if len(wanted.prompts) == 1 else f"prompt[{index}]"
        placed = await service.encode(
            prompt, media, add_special_tokens=wanted.add_special_tokens, param=param
        )
        ask = Ask(
            f"{request_id}-{index}",
            placed.token_ids,
            wanted.sampling,
            param,
            wanted.scheduling,
            grammar=grammar,
            media=placed,
        )
        service.check_fits(ask)
        asks.append(ask)
    return asks


async def _submit(
    service: ModelService, wanted: CompletionRequest, asks: Sequence[Ask], stack: AsyncExitStack
) -> list[_Part]:
    parts: list[_Part] = []
    for ask, prompt in zip(asks, wanted.prompts, strict=True):
        echo = await _echo(service, prompt) if wanted.echo else ""
        for choice in ask.choices():
            answer = None
            if not wanted.only_echo:
                answer = await stack.enter_async_context(await service.submit(choice))
            scores = _scores(service, wanted)
            parts.append(_Part(len(parts), choice, echo, answer, scores, wanted))
    return parts


def _scores(service: ModelService, wanted: CompletionRequest) -> CompletionScores:
    return CompletionScores(
        service.tokenizer,
        num_tops=wanted.sampling.logprobs or 0,
        skip_special_tokens=wanted.sampling.skip_special_tokens,
    )


async def _echo(service: ModelService, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else await service.decode(prompt)


async def _whole(
    head: CompletionHead, parts: Sequence[_Part], headers: dict[str, str]
) -> web.Response:
    choices = await together(part.whole() for part in parts)
    return web.json_response(head.completion(choices, _usage(parts)), headers=headers)


async def _stream(
    events: EventStream, wanted: CompletionRequest, head: CompletionHead, parts: Sequence[_Part]
) -> web.StreamResponse:
    # With include_usage every chunk has the field, null in all but the extra last one.
    blank = {"usage": None} if wanted.streaming.include_usage else {}

    async def send_part(part: _Part) -> None:
        async for choice in part.chunks():
            await events.send({**head.chunk(choice), **blank})

    async with events:
        await together(map(send_part, parts))
        if wanted.streaming.include_usage:
            await events.send(head.usage_chunk(_usage(parts)))
    return events.response


def _usage(parts: Sequence[_Part]) -> dict[str, Any]:
    answers = [part.answer for part in parts if part.answer]
    number = parts[0].ask.sampling.num_choices
    if answers:
        return usage_of(answers, num_choices=number)
    prompt_tokens = sum(len(part.ask.prompt) for part in parts[::number])
    return usage_body(prompt_tokens=prompt_tokens, completion_tokens=0, cached_tokens=0)
