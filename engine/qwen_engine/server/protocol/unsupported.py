"""Fields of OpenAI's and vLLM's requests that would change the answer and that this version
cannot honour.

Ignoring one of them would give a wrong answer silently, so each is refused, except with the value
that means "not wanted", which clients send freely. Fields that only carry notes (user, metadata,
…) are not here: they are ignored, and listed as such.
"""

from __future__ import annotations

from typing import Any

from qwen_engine.server.protocol.fields import Fields

_NOTHING: tuple[Any, ...] = (None, [], {}, "", False, 0)

# The field, and the values that ask for nothing.
COMMON: dict[str, tuple[Any, ...]] = {
    "use_beam_search": _NOTHING,
    "length_penalty": (None, 1),
    "bad_words": _NOTHING,
    "allowed_token_ids": (None,),
    "truncate_prompt_tokens": (None,),
    "logits_processors": _NOTHING,
    "return_token_ids": _NOTHING,
    "return_tokens_as_token_ids": _NOTHING,
    "kv_transfer_params": _NOTHING,
}
CHAT: dict[str, tuple[Any, ...]] = {
    **COMMON,
    "functions": _NOTHING,
    "function_call": (None, "none", "auto"),
    "documents": _NOTHING,
    "echo": _NOTHING,
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "chat_template": _NOTHING,
}
COMPLETIONS: dict[str, tuple[Any, ...]] = {
    **COMMON,
    "suffix": _NOTHING,
    "prompt_embeds": (None,),
}


def refuse_unsupported(fields: Fields, table: dict[str, tuple[Any, ...]]) -> None:
    """Raise RequestError for the first field that asks for what this version lacks."""
    for name, neutral in table.items():
        value = fields.value(name)
        if not any(_is_same(value, each) for each in neutral):
            accepted = " or ".join(_json_word(each) for each in neutral[1:])
            hint = f"leave it out or send {accepted}" if accepted else "leave it out"
            raise fields.error(name, f"is not supported by this version: {hint}")


def _is_same(value: object, neutral: object) -> bool:
    # In Python true == 1 and false == 0, in JSON they are not.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _json_word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')
