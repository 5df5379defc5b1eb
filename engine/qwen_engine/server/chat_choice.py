"""One choice of a chat: thinking, words and calls of tools, as one message or as deltas.

Used by `chat_route`. Both forms come from the same events, so they say the same.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from qwen_engine.answer_text import Piece
from qwen_engine.parsing.tool_calls import Arguments, CallStart, Event, Text, ToolCallParser
from qwen_engine.sequence import TokenLogprobs
from qwen_engine.server.answer import Answer
from qwen_engine.server.ask import Ask
from qwen_engine.server.protocol.chat import chat_choice, chat_delta
from qwen_engine.server.protocol.tools import ToolUse
from qwen_engine.server.scores import Scored, chat_body, scored_prompt
from qwen_engine.tokenizer import Tokenizer


class ChatChoice:
    """One answer among the n that were asked for."""

    def __init__(
        self, index: int, ask: Ask, *, answer: Answer, tokenizer: Tokenizer, tool_use: ToolUse
    ) -> None:
        self._index = index
        self._ask = ask
        self.answer = answer
        self.tokenizer = tokenizer
        self._tool_use = tool_use
        self._parser = ToolCallParser() if tool_use.tools else None
        self._logprobs: list[TokenLogprobs] = []  # of tokens that no delta has shown yet

    async def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        piece = await self.answer.whole()
        self._logprobs += piece.logprobs
        events = [*self._read(piece.text), *self._rest()]
        calls = _whole_calls(events)
        text = "".join(event.text for event in events if isinstance(event, Text))
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if calls else ""),
            "refusal": None,
        }
        if self._ask.is_thinking is not None:
            message["reasoning_content"] = piece.reasoning or None
        if calls:
            message["tool_calls"] = calls
        return chat_choice(self._index, message, self._take_logprobs(), self._finish())

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the choice piece by piece."""
        yield chat_delta(self._index, {"role": "assistant", "content": ""})
        async for piece in self.answer.pieces():
            self._logprobs += piece.logprobs
            for delta in self._deltas(piece):
                yield chat_delta(self._index, delta, self._take_logprobs())
        for event in self._rest():
            yield chat_delta(self._index, _delta(event), self._take_logprobs())
        yield chat_delta(self._index, {}, self._take_logprobs(), self._finish())

    async def scored_prompt(self) -> list[Scored]:
        return scored_prompt(self._ask.prompt, await self.answer.prompt_logprobs())

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if piece.reasoning:
            deltas.append({"reasoning_content": piece.reasoning})
        return deltas + [_delta(event) for event in self._read(piece.text)]

    def _read(self, text: str) -> list[Event]:
        if self._parser is None:
            return [Text(text)] if text else []
        return self._allowed(self._parser.feed(text))

    def _rest(self) -> list[Event]:
        return [] if self._parser is None else self._allowed(self._parser.flush())

    def _allowed(self, events: Iterable[Event]) -> list[Event]:
        """Leave out all calls but the first where the client takes no more."""
        if self._tool_use.is_parallel:
            return list(events)
        return [event for event in events if isinstance(event, Text) or event.index == 0]

    def _finish(self) -> dict[str, Any]:
        finish = self.answer.finish()
        has_called = self._parser is not None and self._parser.num_calls > 0
        if has_called and not self._tool_use.is_named and finish["finish_reason"] == "stop":
            return {**finish, "finish_reason": "tool_calls"}
        return finish

    def _take_logprobs(self) -> dict[str, Any] | None:
        entries: Sequence[TokenLogprobs] = self._logprobs
        if not entries:
            return None
        self._logprobs = []
        return chat_body(self.tokenizer, entries)


def _delta(event: Event) -> dict[str, Any]:
    match event:
        case Text(text):
            return {"content": text}
        case CallStart(index, name):
            return {"tool_calls": [{"index": index, **_new_call(name)}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _whole_calls(events: Iterable[Event]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append(_new_call(event.name))
        elif isinstance(event, Arguments):
            calls[-1]["function"]["arguments"] += event.text
    return calls


def _new_call(name: str) -> dict[str, Any]:
    """Return a call without its arguments yet; ids are as long as OpenAI's."""
    function = {"name": name, "arguments": ""}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
