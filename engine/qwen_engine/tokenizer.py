"""Text to token ids, chat messages to a prompt, and the way back to text.

Owns the model folder's tokenizer and chat template; transformers is the reference behaviour.
Called by the server and by `bench`. Encoding and decoding go to the Rust tokenizer, which several
threads may share. Never runs code from a model folder. Knows no HTTP and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from qwen_engine.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from qwen_engine.errors import ChatTemplateError, RequestError
from qwen_engine.tokenizer_files import TokenizerFiles, first_line, read_tokenizer

# Enough of the prompt for the first token's leading space to be decided as in running text.
_CONTEXT_TOKENS = 4


class Tokenizer:
    """One model's tokenizer; every method may be called from any thread."""

    def __init__(self, files: TokenizerFiles, *, chat_template: str | None = None) -> None:
        self._fast = files.fast
        self._fast.no_truncation()
        self._fast.no_padding()
        self._special_tokens = files.special_tokens
        self._templates = {"default": chat_template} if chat_template else files.templates
        self._added = {
            token_id: (added.content, bool(added.special))
            for token_id, added in self._fast.get_added_tokens_decoder().items()
        }
        self._is_byte_level = type(self._fast.decoder).__name__ == "ByteLevel"
        self._shown = _Pieces(self._fast, self._added, skip_special=True)
        self._all = _Pieces(self._fast, self._added, skip_special=False)
        vocabulary = self._fast.get_vocab(with_added_tokens=True)
        self.longest_token_chars = max(map(len, vocabulary), default=1)
        eos = self._special_tokens.get("eos_token")
        self.eos_token_id: int | None = None if eos is None else self._fast.token_to_id(eos)

    @property
    def chat_template(self) -> str:
        """The text of the template that `render_chat` uses; empty if there is none."""
        return self._template(with_tools=False)

    @classmethod
    def from_folder(cls, path: Path, *, chat_template: str | None = None) -> Self:
        """Read the tokenizer of a model folder.

        Raises:
            TokenizerError: there is none, it is damaged, or it needs code from the folder.
        """
        return cls(read_tokenizer(path), chat_template=chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with the tokenizer's own leading or trailing ids if asked.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        # encode() holds the interpreter lock: 5.8 s for 3.7 MB of text (tokenizers 0.23.3,
        # measured), in which nothing else in the process runs. The batch call releases it.
        try:
            batch = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate, "\ud800" in JSON
            raise RequestError("the text is not valid Unicode: it has a lone surrogate") from error
        ids: list[int] = batch[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's entry in the vocabulary; empty for ids that have none."""
        return [self._fast.id_to_token(token_id) or "" for token_id in token_ids]

    def added_token_id(self, text: str) -> int | None:
        """Return the id of a token that was added to the vocabulary whole, such as `<think>`."""
        return next((token_id for token_id, (own, _) in self._added.items() if own == text), None)

    def to_json(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json."""
        text: str = self._fast.to_str()
        return text

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool = False) -> bytes:
        """Return what one token stands for; a part of a character in byte-level vocabularies."""
        if self._is_byte_level:
            return (self._shown if skip_special_tokens else self._all).piece(token_id)
        return self.decode([token_id], skip_special_tokens=skip_special_tokens).encode()

    def detokenizer(
        self, prompt: Sequence[int], *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """Make a detokenizer for the answer that follows `prompt`."""
        if self._is_byte_level:
            return ByteDetokenizer(self._shown if skip_special_tokens else self._all)

        def decode(token_ids: Sequence[int]) -> str:
            return self.decode(token_ids, skip_special_tokens=skip_special_tokens)

        return WindowDetokenizer(decode, prompt[-_CONTEXT_TOKENS:])

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render messages with the model's chat template, in jinja's sandbox.

        Raises:
            ChatTemplateError: no template, or it refuses these messages; with its own words.
        """
        # Here, as the planner's users have no jinja.
        from jinja2 import TemplateError

        from qwen_engine.chat_template import render

        template = self._template(with_tools=bool(tools))
        if not template:
            raise ChatTemplateError(
                "this model has no chat template: use /v1/completions, or start the server with "
                "--chat-template FILE",
                param="messages",
            )
        try:
            return render(
                template,
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables={**self._special_tokens, **(variables or {})},
            )
        except (
            TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError
        ) as error:  # fmt: skip
            reason = first_line(error)
            raise ChatTemplateError(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            ) from error

    def _template(self, *, with_tools: bool) -> str:
        """Return the template for a conversation; some models have one of their own for tools."""
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default", "")


class _Pieces:
    """The bytes of each token of a byte-level vocabulary, found on first use."""

    def __init__(
        self, fast: Any, added: Mapping[int, tuple[str, bool]], *, skip_special: bool
    ) -> None:
        self._fast = fast
        self._added = added
        self._skip_special = skip_special
        self._known: dict[int, bytes] = {}

    def piece(self, token_id: int) -> bytes:
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._find(token_id)
        return piece

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            content, is_special = self._added[token_id]
            return b"" if is_special and self._skip_special else content.encode()
        token = self._fast.id_to_token(token_id)
        if token is None:  # ids between the vocabulary's end and the embedding's padded size
            return b""
        if any(character not in _BYTE_OF for character in token):
            return str(token).encode()
        return bytes(_BYTE_OF[character] for character in token)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte (openai/gpt-2, src/encoder.py)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    alphabet = {chr(byte): byte for byte in shown}
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF = _byte_alphabet()
