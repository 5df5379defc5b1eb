"""Answers in a form that is asked for: JSON, a regex, a choice, a grammar, calls of tools.

Owns the compilation of grammars (llguidance) and `AnswerConstraint`, which the sampler asks what
may come next. Called by the server, in its threads; the sampler knows the protocol only. Thinking
is free: the form holds for what follows it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

from qwen_engine.errors import RequestError
from qwen_engine.host_memory import resident_bytes
from qwen_engine.parsing.reasoning import (
    message_opens_thinking,
    prompt_closes_thinking,
    prompt_opens_thinking,
)
from qwen_engine.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# White space that JSON may have between its parts: enough for any usual layout, and bounded, for
# models that are not told to write JSON like to go on with spaces for ever.
WHITESPACE = r"[ ]?|\n[ ]{0,24}"

Kind = Literal["json", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must look like; `value` is a schema, an expression, the choices, a grammar."""

    kind: Kind
    value: Any
    param: str  # the request's field that it came from


@dataclass(frozen=True, slots=True)
class Calls:
    """The answer is to be calls of these tools (function objects as OpenAI has them)."""

    functions: tuple[Mapping[str, Any], ...]
    is_parallel: bool


class Thinking(Enum):
    """Where an answer begins."""

    OPEN = auto()  # inside the thinking
    POSSIBLE = auto()  # the model may open it
    CLOSED = auto()  # there is none


def thinking_at_start(prompt: str, *, continued: str | None = None) -> Thinking:
    """Say where an answer begins, by the rendered prompt, or by the message to go on with."""
    if continued is not None:
        return Thinking.OPEN if message_opens_thinking(continued) else Thinking.CLOSED
    if prompt_opens_thinking(prompt):
        return Thinking.OPEN
    return Thinking.CLOSED if prompt_closes_thinking(prompt) else Thinking.POSSIBLE


class Grammar:
    """A compiled form; `constrain` gives each answer a state of its own."""

    def __init__(self, matcher: Any, thinking_ids: _ThinkingIds) -> None:
        self._matcher = matcher
        self._thinking_ids = thinking_ids

    def constrain(self, thinking: Thinking) -> AnswerConstraint:
        return AnswerConstraint(self._matcher.deep_copy(), self._thinking_ids, thinking)


@dataclass(frozen=True, slots=True)
class _ThinkingIds:
    """Tokens around the thinking; None where the vocabulary lacks one."""

    open: int | None
    close: int | None
    breaks: frozenset[int]  # line breaks that the model puts after it


class AnswerConstraint:
    """Which tokens may come next in one answer. Belongs to the thread that samples."""

    def __init__(self, matcher: Any, ids: _ThinkingIds, thinking: Thinking) -> None:
        self._matcher = matcher
        self._ids = ids
        self._is_thinking = thinking is Thinking.OPEN and ids.close is not None
        self._may_open = thinking is Thinking.POSSIBLE and ids.close is not None
        self._may_break = False
        self._has_failed = False

    def allowed(self) -> bytes | None:
        """Return a bit for each token, the least significant first; None if all may come."""
        if self._is_thinking:
            return None
        mask: bytes = self._matcher.compute_bitmask()
        extra = set(self._ids.breaks) if self._may_break else set()
        if self._may_open and self._ids.open is not None:
            extra.add(self._ids.open)
        return _with_bits(mask, extra) if extra else mask

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen."""
        if self._is_thinking:
            self._is_thinking = token_id != self._ids.close
            self._may_break = not self._is_thinking
            return
        if self._may_open and token_id == self._ids.open:
            self._is_thinking, self._may_open = True, False
            return
        may_break, self._may_open, self._may_break = self._may_break, False, False
        if may_break and token_id in self._ids.breaks:
            return
        if not self._matcher.consume_token(token_id) and not self._has_failed:
            # Only the end is allowed from here on: the answer stops, the others go on.
            self._has_failed = True
            log.warning("a grammar failed in an answer: %s", self._matcher.get_error())


def _with_bits(mask: bytes, token_ids: set[int]) -> bytes:
    changed = bytearray(mask)
    for token_id in token_ids:
        changed[token_id >> 3] |= 1 << (token_id & 7)
    return bytes(changed)


class GrammarCompiler:
    """Compiles forms for one model; may be called from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        breaks = (tokenizer.encode(text, add_special_tokens=False) for text in ("\n", "\n\n"))
        self._thinking_ids = _ThinkingIds(
            tokenizer.added_token_id("<think>"),
            tokenizer.added_token_id("</think>"),
            frozenset(ids[0] for ids in breaks if len(ids) == 1),
        )

    def prepare(self) -> int:
        """Do what every grammar needs once, which takes most of a second.

        Returns the bytes of memory that it took, if nothing else ran meanwhile.
        """
        before = resident_bytes()
        try:
            self._open_vocabulary()
        except Exception:  # without grammars the model can still be served
            log.exception("no grammars: llguidance cannot read this model's vocabulary")
        return max(0, resident_bytes() - before)

    def compile(self, form: Form | None, calls: Calls | None = None) -> Grammar:
        """Compile a form, or calls; given both, the model may choose which it writes.

        Raises:
            RequestError: it cannot be; in the words of llguidance.
        """
        from llguidance import LLMatcher

        param = "tools" if form is None else form.param
        vocabulary = self._open_vocabulary()
        try:
            source = _source(form) if calls is None else self._calls(calls, form)
            error = LLMatcher.validate_grammar(source, vocabulary).strip()
        except (ValueError, RecursionError) as failure:  # no Unicode, or nested without end
            error = str(failure)
        if error:
            raise RequestError(f"{param} cannot be used: {error[:500]}", param=param)
        return Grammar(LLMatcher(vocabulary, source, log_level=0), self._thinking_ids)

    def _open_vocabulary(self) -> Any:
        """Prepare the vocabulary once: 0.6 to 1.7 s for 151,936 tokens (llguidance 1.9.1)."""
        from llguidance import LLTokenizer

        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = LLTokenizer(
                    self._tokenizer.to_json(),
                    n_vocab=self._vocab_size,
                    eos_token=self._eos_token_ids,
                )
            return self._vocabulary

    def _calls(self, calls: Calls, form: Form | None) -> str:
        """Write a grammar of calls as the model's template shows them, or of JSON instead."""
        first, last = (self._tag(tag) for tag in ("<tool_call>", "</tool_call>"))
        more = '("\\n" call)*' if calls.is_parallel else ""
        rules = [f"calls: call {more}", f'call: {first} "\\n" body "\\n" {last}']
        if form is None:
            rules.append("start: calls")
        elif form.kind == "json":
            rules += ["start: calls | form", f"form: %json {json.dumps(_bounded(form.value))}"]
        else:
            why = "cannot be given together with tools, unless tool_choice is none"
            raise RequestError(f"{form.param} {why}", param=form.param)
        names = [f"call_{place}" for place in range(len(calls.functions))]
        rules.append(f"body: {' | '.join(names)}")
        for rule, function in zip(names, calls.functions, strict=True):
            head = f'{{"name": {json.dumps(function["name"])}, "arguments": '
            schema = function.get("parameters") or _NO_ARGUMENTS
            rules.append(f'{rule}: {json.dumps(head)} {rule}_arguments "}}"')
            rules.append(f"{rule}_arguments: %json {json.dumps(_bounded(schema))}")
        return "\n".join(rules)

    def _tag(self, tag: str) -> str:
        token_id = self._tokenizer.added_token_id(tag)
        return json.dumps(tag) if token_id is None else f"<[{token_id}]>"


_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}


def _source(form: Form | None) -> str:
    """Return a form as llguidance reads it."""
    from llguidance import LLMatcher, grammar_from

    assert form is not None, "there is a form or there are calls"
    match form.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(json.dumps(_bounded(form.value)))
        case "regex":
            return LLMatcher.grammar_from_regex(form.value)
        case "choice":
            return LLMatcher.grammar_from_lark(_choices(form.value))
        case "grammar":
            return grammar_from("grammar", form.value)


def _choices(choices: Sequence[str]) -> str:
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
