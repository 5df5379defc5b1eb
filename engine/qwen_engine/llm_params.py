"""What a script asks of `LLM`: vLLM's names, and their translation for the engine.

Used by `llm`. Knows no torch: scripts make parameters before they load a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qwen_engine.answer_text import TextRules
from qwen_engine.errors import InvalidRequestError
from qwen_engine.sequence import Constraint
from qwen_engine.sequence import SamplingParams as EngineParams
from qwen_engine.structured import Form

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form that an answer is held to: one of these."""

    json: Mapping[str, Any] | str | None = None  # a schema, or its text
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def form(self) -> Form | None:
        """Return the one form that is asked for.

        Raises:
            InvalidRequestError: there are several.
        """
        forms = self._forms()
        if len(forms) > 1:
            names = ", ".join(form.param for form in forms)
            raise InvalidRequestError("structured_outputs", names, "give one of them")
        return forms[0] if forms else None

    def _forms(self) -> list[Form]:
        found: list[Form] = []
        if self.json is not None:
            found.append(Form("json", _schema(self.json), "json"))
        if self.regex is not None:
            found.append(Form("regex", self.regex, "regex"))
        if self.choice is not None:
            found.append(Form("choice", tuple(self.choice), "choice"))
        if self.grammar is not None:
            found.append(Form("grammar", self.grammar, "grammar"))
        if self.json_object:
            found.append(Form("json", _ANY_OBJECT, "json_object"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop; vLLM's names, meanings and defaults.

    Raises:
        InvalidRequestError: a value is out of its range.
    """

    n: int = 1
    temperature: float = 1.0  # 0 = always the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = all
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16  # None: as many as fit
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True  # of slow tokenizers only: no effect here
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidRequestError("n", self.n, "must be at least 1")
        if "" in self._stops:
            raise InvalidRequestError("stop", "", "must not be empty")
        self.engine_params(max_tokens=self.max_tokens if self.max_tokens is not None else 2**31)

    @property
    def _stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def text_rules(self) -> TextRules:
        """Return what ends the answer's text."""
        return TextRules(
            stop=self._stops,
            stop_token_ids=frozenset(self.stop_token_ids),
            include_stop=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
        )

    def engine_params(
        self,
        *,
        max_tokens: int,
        choice: int = 0,
        extra_eos: frozenset[int] = frozenset(),
        constraint: Constraint | None = None,
    ) -> EngineParams:
        """Return the engine's share of it, for one of the n choices."""
        stop_token_ids = frozenset(self.stop_token_ids)
        ignores_eos = self.ignore_eos and constraint is None  # a form has to end
        return EngineParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=None if self.seed is None else self.seed + choice,
            stop_token_ids=stop_token_ids if ignores_eos else stop_token_ids | extra_eos,
            ignore_eos=ignores_eos,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            constraint=constraint,
        )


def _schema(given: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except ValueError as error:
        raise InvalidRequestError("json", given[:60], "is no JSON") from error
    if not isinstance(schema, dict):
        raise InvalidRequestError("json", given[:60], "must be a JSON schema: an object")
    return schema
