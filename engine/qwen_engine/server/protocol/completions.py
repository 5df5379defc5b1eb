"""/v1/completions: the request, and the bodies of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_engine.sequence import SchedulingParams
from qwen_engine.server.protocol.content import (
    MediaRef,
    parse_multi_modal_data,
    parse_processor_settings,
)
from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.server.protocol.logprobs import parse_completion_logprobs, parse_prompt_logprobs
from qwen_engine.server.protocol.sampling import Sampling, parse_sampling
from qwen_engine.server.protocol.scheduling import parse_scheduling
from qwen_engine.server.protocol.streaming import Streaming, parse_streaming
from qwen_engine.server.protocol.structured import parse_form
from qwen_engine.server.protocol.unsupported import COMPLETIONS, refuse_unsupported
from qwen_engine.structured import Form

DEFAULT_MAX_TOKENS = 16  # OpenAI's

Prompt = str | list[int]  # text, or token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    model: str | None
    prompts: tuple[Prompt, ...]
    media: tuple[MediaRef, ...]  # of the prompt, which is one then
    processor_settings: Mapping[str, Any] | None
    sampling: Sampling
    form: Form | None
    scheduling: SchedulingParams
    streaming: Streaming
    echo: bool
    prompt_logprobs: int | None  # as asked for by that name; echo with logprobs needs them too
    add_special_tokens: bool
    ignored: tuple[str, ...]  # fields that were sent and have no effect

    @property
    def only_echo(self) -> bool:
        """Nothing is to be computed: the prompt is wanted back and no more."""
        return self.sampling.max_tokens == 0 and self.sampling.prompt_logprobs is None


def parse_completion(body: object, recommended: Mapping[str, float]) -> CompletionRequest:
    """Read the body of a request.

    Raises:
        RequestError: the first thing that is wrong, with the field's name.
    """
    fields = Fields(body)
    model = fields.string("model")
    prompts = parse_prompts(fields)
    media = parse_multi_modal_data(fields)
    if media and len(prompts) > 1:
        raise fields.error(
            "multi_modal_data", "is taken with one prompt only: send several requests"
        )
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", low=0 if echo else 1)
    limit = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    logprobs = parse_completion_logprobs(fields)
    sampling = parse_sampling(fields, max_tokens=limit, recommended=recommended, logprobs=logprobs)
    streaming = parse_streaming(fields)
    prompt_logprobs = parse_prompt_logprobs(fields, stream=streaming.stream)
    needed = [prompt_logprobs, logprobs if echo else None]
    add_special_tokens = fields.boolean("add_special_tokens", default=True)
    form = parse_form(fields)
    refuse_unsupported(fields, COMPLETIONS)
    return CompletionRequest(
        model=model,
        prompts=prompts,
        media=media,
        processor_settings=parse_processor_settings(fields),
        form=form,
        sampling=replace(
            sampling, prompt_logprobs=max((n for n in needed if n is not None), default=None)
        ),
        scheduling=parse_scheduling(fields),
        streaming=streaming,
        echo=echo,
        prompt_logprobs=prompt_logprobs,
        add_special_tokens=add_special_tokens,
        ignored=(*fields.ignored(), *streaming.ignored),
    )


def parse_prompts(fields: Fields) -> tuple[Prompt, ...]:
    """Read `prompt`: a text, texts, token ids, or lists of token ids."""
    prompt = fields.value("prompt")
    if prompt is None:
        raise fields.error("prompt", "is missing")
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list):
        why = f"must be a string or an array, not {describe(prompt)}"
        raise fields.error("prompt", why)
    if not prompt:
        raise fields.error("prompt", "is empty")
    if all(type(each) is int for each in prompt):
        return (prompt,)
    return tuple(_parse_one(fields, index, each) for index, each in enumerate(prompt))


def _parse_one(fields: Fields, index: int, prompt: object) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    name = f"prompt[{index}]"
    if not isinstance(prompt, list):
        why = f"must be a string or an array of token ids, not {describe(prompt)}"
        raise fields.error(name, why)
    for each in prompt:
        if type(each) is not int:
            raise fields.error(name, f"must hold token ids, not {describe(each)}")
    return prompt


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """What every body of one answer repeats."""

    request_id: str
    created: int  # Unix seconds
    model: str

    def completion(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {**self._head(), "choices": choices, "usage": usage}

    def chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return one piece of a streamed answer."""
        return {**self._head(), "choices": [choice]}

    def usage_chunk(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._head(), "choices": [], "usage": usage}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }


def completion_choice(
    index: int,
    text: str,
    logprobs: Mapping[str, Any] | None = None,
    finish: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one choice of a body or chunk; the last one of each index has `finish`."""
    end = finish or {"finish_reason": None}
    return {"index": index, "text": text, "logprobs": logprobs, **end}
