"""The sampling fields that both completion routes share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qwen_engine.answer_text import TextRules
from qwen_engine.sequence import SamplingParams
from qwen_engine.server.protocol.fields import Fields, as_integer, describe

# OpenAI takes 4; agents send a dozen. Each costs a little for every character of the answer.
MAX_STOPS = 32
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_CHOICES = 128  # OpenAI's bound of n
MAX_BIASES = 1024
MAX_BIAS = 100.0  # OpenAI's
_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request says of sampling; max_tokens None is "as many as fit"."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    num_choices: int
    logit_bias: tuple[tuple[int, float], ...]
    logprobs: int | None
    prompt_logprobs: int | None = None

    def for_choice(self, index: int) -> Sampling:
        """Return what the choice of that index samples with: seeds follow each other, as vLLM's
        do (v1/engine/parallel_sampling.py), so that no two choices are the same by construction.
        """
        return self if self.seed is None else replace(self, seed=self.seed + index)

    def text_rules(self) -> TextRules:
        """Return what ends the answer's text."""
        return TextRules(
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
        )

    def params(self, max_tokens: int, extra_eos: frozenset[int]) -> SamplingParams:
        """Return the engine's share of it; `extra_eos` ends the answer too, unless ignored."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop_token_ids=self.stop_token_ids | (frozenset() if self.ignore_eos else extra_eos),
            ignore_eos=self.ignore_eos,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


def parse_sampling(
    fields: Fields,
    *,
    max_tokens: int | None,
    recommended: Mapping[str, float],
    logprobs: int | None,
) -> Sampling:
    """Read the fields; what the request leaves out comes from the model's recommendation."""
    reader = _Reader(fields, recommended)
    min_tokens = fields.integer("min_tokens", low=0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        why = f"must be at most max_tokens ({max_tokens}), not {min_tokens}"
        raise fields.error("min_tokens", why)
    # Of slow tokenizers only: ours are fast ones, which take spaces from the vocabulary alone.
    fields.boolean("spaces_between_special_tokens", default=True)
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=reader.number("temperature", 1.0, low=0.0),
        top_p=_parse_top_p(reader, fields),
        top_k=int(reader.integer("top_k", 0, low=-1)),
        min_p=reader.number("min_p", 0.0, low=0.0, high=1.0),
        seed=fields.integer("seed", low=-(2**63), high=2**63 - 1),
        presence_penalty=reader.number("presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=reader.number("frequency_penalty", 0.0, low=-2.0, high=2.0),
        repetition_penalty=_parse_repetition_penalty(reader, fields),
        stop=_parse_stop(fields),
        stop_token_ids=_parse_stop_token_ids(fields),
        ignore_eos=fields.boolean("ignore_eos"),
        include_stop_str_in_output=fields.boolean("include_stop_str_in_output"),
        skip_special_tokens=fields.boolean("skip_special_tokens", default=True),
        num_choices=_parse_num_choices(fields),
        logit_bias=_parse_logit_bias(fields),
        logprobs=logprobs,
    )


class _Reader:
    """Numbers with a default: the model's recommendation, else ours."""

    def __init__(self, fields: Fields, recommended: Mapping[str, float]) -> None:
        self._fields = fields
        self._recommended = recommended

    def number(self, name: str, default: float, *, low: float, high: float | None = None) -> float:
        value = self._fields.number(name, low=low, high=high)
        return float(self._recommended.get(name, default)) if value is None else value

    def integer(self, name: str, default: int, *, low: int) -> int:
        value = self._fields.integer(name, low=low, high=2**31 - 1)
        return int(self._recommended.get(name, default)) if value is None else value


def _parse_top_p(reader: _Reader, fields: Fields) -> float:
    top_p = reader.number("top_p", 1.0, low=0.0, high=1.0)
    if top_p == 0:
        raise fields.error("top_p", "must be above 0 and at most 1: use temperature 0 for greedy")
    return top_p


def _parse_repetition_penalty(reader: _Reader, fields: Fields) -> float:
    penalty = reader.number("repetition_penalty", 1.0, low=0.0)
    if penalty == 0:
        raise fields.error("repetition_penalty", "must be above 0")
    return penalty


def _parse_num_choices(fields: Fields) -> int:
    wanted = fields.integer("n", low=1, high=MAX_CHOICES) or 1
    best_of = fields.integer("best_of", low=1)
    if best_of is not None and best_of < wanted:
        raise fields.error("best_of", f"must be at least n ({wanted}), not {best_of}")
    if best_of is not None and best_of > wanted:
        # vLLM samples n answers too since it dropped best_of (vllm-project/vllm issue 13361): the
        # likeliest of many are no better. Any n answers are sound, so it is told, not refused.
        fields.leave("best_of")
    return wanted


def _parse_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.object("logit_bias") or {}
    if len(given) > MAX_BIASES:
        raise fields.error("logit_bias", f"may have at most {MAX_BIASES} ids, not {len(given)}")
    for key in given:
        if not _TOKEN_ID.fullmatch(key):
            raise fields.error("logit_bias", f"must have token ids as keys, not {describe(key)}")
    values = Fields(given, "logit_bias")
    found = ((int(key), values.number(key, low=-MAX_BIAS, high=MAX_BIAS)) for key in given)
    return tuple((token_id, bias) for token_id, bias in found if bias)


def _parse_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.value("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        why = f"must be a string or an array of strings, not {describe(value)}"
        raise fields.error("stop", why)
    if len(stops) > MAX_STOPS:
        raise fields.error("stop", f"may have at most {MAX_STOPS} strings, not {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str):
            raise fields.error("stop", f"must hold strings, not {describe(stop)}")
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            why = f"must hold strings of 1 to {MAX_STOP_CHARS} characters, not {len(stop)}"
            raise fields.error("stop", why)
    return tuple(dict.fromkeys(stops))


def _parse_stop_token_ids(fields: Fields) -> frozenset[int]:
    value = fields.array("stop_token_ids") or []
    if len(value) > MAX_STOP_TOKEN_IDS:
        why = f"may have at most {MAX_STOP_TOKEN_IDS} ids, not {len(value)}"
        raise fields.error("stop_token_ids", why)
    ids = [as_integer(each) for each in value]
    if any(each is None or each < 0 for each in ids):
        raise fields.error("stop_token_ids", "must hold token ids: integers of at least 0")
    return frozenset(each for each in ids if each is not None)
