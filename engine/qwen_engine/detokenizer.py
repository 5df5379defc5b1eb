"""Token ids → text, a few tokens at a time, and the search for stop strings in that text.

Called by the server for every request, streamed or not, so both give the same text. Works on new
tokens only: the cost of a step does not grow with the length of the answer. Knows nothing of HTTP
or scheduling.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

# A character is at most four bytes, and a token of a byte-fallback vocabulary at least one: after
# this many tokens a trailing U+FFFD is the character itself and no longer half of another one.
_LONGEST_CHARACTER_TOKENS = 4


class Detokenizer(Protocol):
    """Turns the ids of one answer into text; holds back what may still become another character."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take new ids, return the text that is certain."""

    def flush(self) -> str:
        """Return what was held back; nothing follows."""


class PieceTable(Protocol):
    """The bytes a token stands for; empty for a token that is not to be shown."""

    def piece(self, token_id: int) -> bytes: ...


class TextDecoder(Protocol):
    """Decodes a short run of ids at once."""

    def __call__(self, token_ids: Sequence[int]) -> str: ...


class ByteDetokenizer:
    """For byte-level vocabularies (Qwen, Llama 3, SmolLM2): exact, because every token is known
    bytes.

    A literal U+FFFD is three complete bytes here and passes at once; only truly unfinished
    characters wait.
    """

    def __init__(self, pieces: PieceTable) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        data = b"".join(map(self._pieces.piece, token_ids))
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For other vocabularies, where a token's text depends on its neighbours (sentencepiece
    spaces).

    Decodes a short window twice, without and with the new ids, and returns the difference; the
    idea is text-generation-inference's (server/text_generation_server/models/model.py,
    decode_token).
    """

    def __init__(self, decode: TextDecoder, context: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(context)
        self._shown = len(self._window)  # ids of the window whose text was returned

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(self._feed_one(token_id) for token_id in token_ids)

    def _feed_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._new_text()
        waiting = len(self._window) - self._shown
        if not text or (text.endswith("\ufffd") and waiting < _LONGEST_CHARACTER_TOKENS):
            return ""
        self._advance()
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._advance()
        return text

    def _new_text(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._shown])) :]

    def _advance(self) -> None:
        """Keep the ids just shown as context for the next ones and forget all before them."""
        if self._shown < len(self._window):
            self._window = self._window[self._shown :]
        self._shown = len(self._window)


class StopMatcher:
    """Finds the first stop string in a growing text and holds back what may be the start of one.

    One Knuth-Morris-Pratt automaton per string, so each character costs the same however it was
    chunked. The match that is complete first wins; of two complete at the same character, the
    longer one.
    """

    def __init__(self, stops: Sequence[str], *, include_match: bool = False) -> None:
        self._stops = tuple(stops)
        self._failures = tuple(_failure_table(stop) for stop in self._stops)
        self._states = [0] * len(self._stops)
        self._held = ""
        self._include_match = include_match
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Return what can be shown of the text so far; sets `matched` when a stop is complete."""
        if not self._stops:
            return text
        held = self._held + text
        for position, character in enumerate(text, start=len(self._held)):
            if (stop := self._advance(character)) is not None:
                return self._finish(held, position + 1, stop)
        keep = max(self._states)
        shown, self._held = held[: len(held) - keep], held[len(held) - keep :]
        return shown

    def flush(self) -> str:
        """Return what was held back: the text ended without a match."""
        held, self._held = self._held, ""
        return held

    def _finish(self, text: str, end: int, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return text[: end if self._include_match else end - len(stop)]

    def _advance(self, character: str) -> str | None:
        complete: str | None = None
        for index, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            state = self._states[index]
            while state and stop[state] != character:
                state = failure[state - 1]
            state += stop[state] == character
            self._states[index] = state
            if state == len(stop) and (complete is None or len(stop) > len(complete)):
                complete = stop
        return complete


def _failure_table(stop: str) -> list[int]:
    """Length of the longest proper prefix of `stop` that also ends at each position."""
    table = [0] * len(stop)
    state = 0
    for position in range(1, len(stop)):
        while state and stop[state] != stop[position]:
            state = table[state - 1]
        state += stop[state] == stop[position]
        table[position] = state
    return table
