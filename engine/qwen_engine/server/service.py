"""The model as the routes use it: text in, answers out.

Owns the step from a parsed request to one in the engine: names, tokenisation (in threads, for it
takes long on long texts), limits. Made once the model is loaded. Knows no aiohttp.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from qwen_engine.answer_text import AnswerText
from qwen_engine.async_engine import AsyncEngine
from qwen_engine.errors import PromptTooLongError, RequestError, UnknownModelError
from qwen_engine.launch import Launched
from qwen_engine.parsing.reasoning import ReasoningParser, knows_thinking
from qwen_engine.parsing.tool_calls import knows_tools
from qwen_engine.server.answer import Answer
from qwen_engine.server.ask import Ask
from qwen_engine.server.protocol.content import MediaRef, refuse_media
from qwen_engine.server.protocol.fields import describe
from qwen_engine.server.settings import ServerSettings
from qwen_engine.structured import Calls, Form, Grammar
from qwen_engine.tokenizer import Tokenizer
from qwen_engine.vision.media import Media
from qwen_engine.vision.prompt import MediaPrompt, expand, write_timestamps

if TYPE_CHECKING:
    from qwen_engine.server.media import MediaReader

Result = TypeVar("Result")


class ModelService:
    """Every method belongs to the event loop's thread."""

    def __init__(
        self,
        launched: Launched,
        engine: AsyncEngine,
        settings: ServerSettings,
        media: MediaReader | None = None,
    ) -> None:
        self.launched = launched
        self.created = int(time.time())
        self._engine = engine
        self._media = media
        self._max_body_bytes = settings.max_body_bytes
        vision = launched.engine.model_config.vision if media else None
        self._vision_tokens = vision.tokens if vision else None
        self._tokenizer = launched.tokenizer
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")
        model_eos = launched.engine.model_config.eos_token_ids
        eos = self._tokenizer.eos_token_id
        self._extra_eos = frozenset({eos} - model_eos if eos is not None else ())
        template = self._tokenizer.chat_template
        self.knows_thinking = settings.reasoning_parser == "qwen3" or (
            settings.reasoning_parser == "auto" and knows_thinking(template)
        )
        self._knows_tools = settings.tool_call_parser == "hermes" or (
            settings.tool_call_parser == "auto" and knows_tools(template)
        )
        self._may_choose_tools = settings.enable_auto_tool_choice

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def names(self) -> tuple[str, ...]:
        return self.launched.config.served_model_names

    @property
    def max_model_len(self) -> int:
        return self.launched.config.max_model_len

    @property
    def recommended_sampling(self) -> Mapping[str, float]:
        """What the model's authors recommend where a request is silent."""
        return self.launched.recommended_sampling

    def now(self) -> int:
        """Return Unix seconds, for the bodies' `created`."""
        return int(time.time())

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_name(self, name: str | None) -> str:
        """Return the served name a request means; leaving it out means the first.

        Raises:
            UnknownModelError: no such model here.
        """
        if name is None:
            return self.names[0]
        if name not in self.names:
            raise UnknownModelError(name[:200], served=self.names)
        return name

    @property
    def media_limits(self) -> Mapping[str, int] | None:
        """How many pictures and videos a request may have; None: this server reads text."""
        if self._media is None:
            return None
        return {**self._media.limits, "max_request_bytes": self._max_body_bytes}

    async def read_media(
        self, refs: Sequence[MediaRef], changes: Mapping[str, Any] | None
    ) -> list[Media]:
        """Fetch and decode what a request names, with its `mm_processor_kwargs`.

        Raises:
            RequestError: it cannot be had or read, or this server cannot see.
        """
        if self._media is not None:
            return await self._media.read(refs, changes)
        refuse_media(refs, changes)
        return []

    async def encode(
        self,
        prompt: str | list[int],
        media: Sequence[Media],
        *,
        add_special_tokens: bool,
        param: str,
    ) -> MediaPrompt:
        """Tokenise a prompt, or check its ids, and put its media in their places.

        Raises:
            RequestError: as `tokenize` and `check_ids`; or more media than places, or fewer.
        """
        tokens = self._vision_tokens
        if isinstance(prompt, str):
            if tokens is not None:
                videos = [item for item in media if item.kind == "video"]
                prompt = write_timestamps(prompt, videos, item=param)
            prompt = await self.tokenize(prompt, add_special_tokens=add_special_tokens, param=param)
        else:
            self.check_ids(prompt, param)
        if tokens is None:
            return MediaPrompt(prompt)
        return expand(prompt, media, tokens, item=param)

    async def tokenize(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        """Tokenise a text that came in the field `param`.

        Raises:
            RequestError: empty, not Unicode, or so long that it cannot fit whatever its tokens are.
        """
        self._refuse_hopeless(text, param)
        try:
            ids = await self._in_thread(
                lambda: self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            )
        except RequestError as error:
            raise RequestError(f"{param}: {error}", param=param) from error
        if not ids:
            raise RequestError(f"{param} is empty: at least one token is needed", param=param)
        return ids

    async def compile(self, form: Form | None, calls: Calls | None = None) -> Grammar | None:
        """Return what the answer is to be held to, if anything."""
        if form is None and calls is None:
            return None
        return await self._in_thread(lambda: self.launched.compiler.compile(form, calls))

    def require_tools(self, *, is_choice: bool) -> None:
        """Raise RequestError unless the model can be given tools here."""
        if not self._knows_tools:
            why = "this model's chat template knows no tools (or --tool-call-parser is none)"
            raise RequestError(f"tools cannot be called: {why}", param="tools")
        if is_choice and not self._may_choose_tools:
            why = 'this server has --no-enable-auto-tool-choice: send tool_choice "none"'
            raise RequestError(f"tools cannot be called: {why}", param="tool_choice")

    async def render_chat(self, messages: Sequence[dict[str, Any]], **settings: Any) -> str:
        """Return the prompt that the model's template makes of messages."""
        return await self._in_thread(lambda: self._tokenizer.render_chat(messages, **settings))

    async def encode_rendered(self, text: str, media: Sequence[Media]) -> MediaPrompt:
        """Tokenise what `render_chat` returned, with the conversation's media in their places."""
        return await self.encode(text, media, add_special_tokens=False, param="messages")

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raise RequestError unless all are ids of this model."""
        size = self.launched.engine.model_config.vocab_size
        if not ids:
            raise RequestError(f"{param} is empty: at least one token is needed", param=param)
        if min(ids) < 0 or max(ids) >= size:
            wrong = next(each for each in ids if not 0 <= each < size)
            raise RequestError(
                f"{param} holds {describe(wrong)}, but this model's token ids are 0 to {size - 1}",
                param=param,
            )

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return await self._in_thread(
            lambda: self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        )

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        return self._tokenizer.token_strings(ids)

    async def submit(self, ask: Ask) -> Answer:
        """Hand a prompt to the engine.

        Raises:
            RequestError: it can never be served; the message has the figures.
            UnavailableError: not now.
        """
        limit = self._max_tokens(ask)
        params = ask.sampling.params(limit, self._extra_eos)
        if ask.grammar is not None:
            constraint = ask.grammar.constrain(ask.thinking)
            # Where the form is complete only the end may follow.
            params = replace(params, constraint=constraint, ignore_eos=False)
        generation = await self._engine.submit(
            ask.request_id,
            ask.prompt,
            params,
            ask.scheduling,
            deadline=ask.deadline,
            media=ask.media,
        )
        detokenizer = self._tokenizer.detokenizer(
            ask.prompt, skip_special_tokens=ask.sampling.skip_special_tokens
        )
        parser = None
        if ask.is_thinking is not None:
            parser = ReasoningParser(is_thinking=ask.is_thinking)
        text = AnswerText(detokenizer, ask.sampling.text_rules(), reasoning=parser)
        return Answer(generation, text, num_prompt_tokens=len(ask.prompt))

    def check_fits(self, ask: Ask) -> None:
        """Raise PromptTooLongError, as `submit` would, without submitting."""
        self._max_tokens(ask)

    def _max_tokens(self, ask: Ask) -> int:
        asked, length = ask.sampling.max_tokens, len(ask.prompt)
        if length + (1 if asked is None else asked) > self.max_model_len:
            error = PromptTooLongError(
                num_prompt_tokens=length, max_tokens=asked, max_model_len=self.max_model_len
            )
            if error.param == "messages":
                error.param = ask.param
            raise error
        if asked is not None:
            return asked
        # A pool smaller than the model's length: what fits it, or the engine's refusal with
        # figures.
        return max(1, min(self.max_model_len, self.launched.engine.max_request_tokens) - length)

    def _refuse_hopeless(self, text: str, param: str) -> None:
        """Refuse what is too long even if made of the longest tokens; tokenising it takes long."""
        least = len(text) // self._tokenizer.longest_token_chars
        if least > self.max_model_len:
            error = PromptTooLongError(
                num_prompt_tokens=least,
                max_tokens=None,
                max_model_len=self.max_model_len,
                is_lower_bound=True,
            )
            error.param = param
            raise error

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
