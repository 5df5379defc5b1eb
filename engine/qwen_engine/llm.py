"""The engine for scripts and notebooks, without a server: `LLM`, with the names of vLLM's.

Owns what users say: prompts, conversations, settings. `llm_batch` runs them. Imported by users,
through the package; imports torch when a model is loaded, and never aiohttp.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, TypedDict, Unpack

from qwen_engine import environment
from qwen_engine.errors import InvalidRequestError, PromptTooLongError
from qwen_engine.hub import ModelSource
from qwen_engine.launch import launch
from qwen_engine.llm_batch import Ask, BatchRunner
from qwen_engine.llm_media import ScriptMedia, named_media, with_addresses
from qwen_engine.llm_outputs import RequestOutput
from qwen_engine.llm_params import SamplingParams
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands
from qwen_engine.structured import thinking_at_start
from qwen_engine.vision.media import Media

# A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}; the latter two may have
# "multi_modal_data": {"image": [...], "video": [...]} and "mm_processor_kwargs" beside it.
Prompt = str | Sequence[int] | Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None

# Settings of vLLM's LLM that scripts pass along, with the values that change nothing here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel_size": (1,),
    "trust_remote_code": (False,),
    "enforce_eager": (True, False),
    "disable_log_stats": (True, False),
}
_SECONDS_BEFORE_BAR = 1.0


class ChatOptions(TypedDict, total=False):
    """How `LLM.chat` makes prompts of messages."""

    tools: Sequence[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]  # such as {"enable_thinking": False}
    mm_processor_kwargs: Mapping[str, Any]  # such as {"max_pixels": 500_000}


class LLM:
    """A loaded model. What is not set is planned for this machine, as `qwen-engine serve` does.

    `settings` have vLLM's names: dtype, max_model_len, block_size, gpu_memory_utilization,
    swap_space, max_num_seqs, max_num_batched_tokens, enable_prefix_caching,
    num_gpu_blocks_override, quantization, kv_cache_dtype, device, seed, chat_template, revision,
    download_dir, limit_mm_per_prompt, mm_processor_kwargs, allowed_media_domains. None leaves a
    setting to the planner.

    Raises:
        ImportError: the package was installed for planning only.
        TypeError: there is no such setting.
        EngineError, PlanningError: the model cannot be had, or does not fit; with the figures.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        _require_extras()
        options = _options(model, settings)
        environment.prepare()
        self._launched = launch(options, lambda progress: None)
        self._engine = self._launched.engine
        self._tokenizer = self._launched.tokenizer
        self._lock = threading.Lock()
        self._batch = BatchRunner(self._launched)
        self._media = ScriptMedia(self._launched)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one prompt or many, all at once; the answers come in the order of the prompts.

        `sampling_params` are for all prompts, or one for each; left out, they are what the model's
        authors recommend. A bar shows the progress of what takes longer than a second.

        Raises:
            RequestError: a prompt or a parameter cannot be; nothing has been computed then.
        """
        each = _as_prompts(prompts)
        chosen = self._broadcast(sampling_params, len(each))
        pairs = zip(each, chosen, strict=True)
        asks = [self._read(*pair, f"prompts[{place}]") for place, pair in enumerate(pairs)]
        return self._run(asks, use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or many; thinking stays in the text, with its tags.

        A content may be parts, as the server takes them: text, image_url, video_url, video; and
        {"type": "image_pil", "image_pil": picture} with a picture of Pillow's.

        Raises:
            RequestError: as `generate`; the model's template may refuse messages too.
        """
        each = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        chosen = self._broadcast(sampling_params, len(each))
        asks = [
            self._render(turns, params, options) for turns, params in zip(each, chosen, strict=True)
        ]
        return self._run(asks, use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's authors recommend."""
        recommended: dict[str, Any] = dict(self._launched.recommended_sampling)
        if "top_k" in recommended:
            recommended["top_k"] = int(recommended["top_k"])
        return SamplingParams(**recommended)

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, as transformers has it."""
        from transformers import AutoTokenizer

        path = self._launched.config.model_path
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)

    def _broadcast(self, params: Params, number: int) -> Sequence[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * number
        if len(params) != number:
            why = f"must be one for all, or one for each of the {number} prompts"
            raise InvalidRequestError("sampling_params", f"{len(params)} of them", why)
        return params

    def _read(self, prompt: Prompt, params: SamplingParams, item: str) -> Ask:
        text, ids = _text_and_ids(prompt)
        media: list[Media] = []
        if isinstance(prompt, Mapping):
            refs = named_media(prompt, item)
            media = self._media.read(refs, prompt.get("mm_processor_kwargs"))
        if ids is None:
            placed = self._media.place(text or "", media, is_rendered=False, item=item)
        else:
            placed = self._media.place_ids(ids, media, item=item)
        self._check(placed.token_ids, item)
        return Ask(text, placed.token_ids, params, media=placed)

    def _render(self, messages: Sequence[Any], params: SamplingParams, options: ChatOptions) -> Ask:
        from qwen_engine.server.protocol.chat import parse_conversation
        from qwen_engine.server.protocol.content import text_of
        from qwen_engine.server.protocol.fields import Fields

        conversation = parse_conversation(Fields({"messages": with_addresses(messages)}))
        media = self._media.read(conversation.media, options.get("mm_processor_kwargs"))
        turns = conversation.messages
        continues = options.get("continue_final_message", False)
        text = self._tokenizer.render_chat(
            turns,
            continue_final_message=continues,
            add_generation_prompt=options.get("add_generation_prompt", not continues),
            variables=options.get("chat_template_kwargs"),
            tools=options.get("tools", ()),
        )
        placed = self._media.place(text, media, is_rendered=True, item="messages")
        self._check(placed.token_ids, "messages")
        last = text_of(turns[-1]["content"]) if continues else None
        thinking = thinking_at_start(text, continued=last)
        return Ask(text, placed.token_ids, params, thinking, placed)

    def _check(self, ids: Sequence[int], param: str) -> None:
        limit = self._engine.max_request_tokens
        if not ids:
            raise InvalidRequestError(param, [], "must have at least one token")
        if len(ids) >= limit:
            raise PromptTooLongError(
                num_prompt_tokens=len(ids), max_tokens=None, max_model_len=limit
            )
        size = self._engine.model_config.vocab_size
        if not 0 <= min(ids) <= max(ids) < size:
            raise InvalidRequestError(param, [min(ids), max(ids)], f"ids are 0 to {size - 1}")

    def _run(self, asks: Sequence[Ask], use_tqdm: bool) -> list[RequestOutput]:
        with self._lock, _bar(len(asks), is_shown=use_tqdm) as bar:
            return self._batch.run(asks, bar.update)


def _as_prompts(given: Any) -> Sequence[Prompt]:
    """Return a list of prompts, of what may be one of them."""
    if isinstance(given, str | Mapping):
        return [given]
    prompts: Sequence[Any] = list(given)
    is_one = bool(prompts) and all(isinstance(each, int) for each in prompts)
    return [prompts] if is_one else prompts


def _text_and_ids(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, Mapping):
        return None, list(prompt)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        why = "must have 'prompt' or 'prompt_token_ids'"
        raise InvalidRequestError("prompts", sorted(prompt), why)
    return text, None if ids is None else list(ids)


def _options(model: str, settings: Mapping[str, Any]) -> EngineOptions:
    """Sort settings into what they are settings of."""
    rest = {name: value for name, value in settings.items() if value is not None}

    def take(kind: type[Any]) -> dict[str, Any]:
        return {each.name: rest.pop(each.name) for each in fields(kind) if each.name in rest}

    demands, source = Demands(**take(Demands)), ModelSource(**take(ModelSource))
    known = take(EngineOptions)
    for name in sorted(rest):
        if rest[name] not in _NEUTRAL.get(name, ()):
            known_names = sorted(
                each.name for kind in (Demands, ModelSource, EngineOptions) for each in fields(kind)
            )
            why = f"{rest[name]!r} is not supported" if name in _NEUTRAL else "there is no such one"
            raise TypeError(f"LLM setting {name}: {why}; there are {', '.join(known_names)}")
    return EngineOptions(model=model, demands=demands, source=source, **known)


def _require_extras() -> None:
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"{module} is missing: pip install 'qwen-engine[serve]'")


def _bar(total: int, *, is_shown: bool) -> AbstractContextManager[Any]:
    from tqdm.auto import tqdm

    bar: AbstractContextManager[Any] = tqdm(
        total=total, desc="Answers", disable=not is_shown, delay=_SECONDS_BEFORE_BAR
    )
    return bar
