"""Chat messages to a prompt, by the template of the model folder.

Owns the environment that templates run in: the names and the limits that transformers 5.24 gives
them (utils/chat_template_utils.py), without importing it. Called by `tokenizer`. A template is
untrusted code: it runs in jinja's sandbox and sees plain JSON values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# A message's reasoning comes under any of these names; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_OWN = ("messages", "tools", "add_generation_prompt")
# Put behind a message that is to go on, so that its end is found in the prompt. The space shows
# whether the template trims.
_MARK = "THE_MESSAGE_GOES_ON_HERE "


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: Mapping[str, Any],
) -> str:
    """Return the prompt.

    Raises:
        TemplateError: the template refuses, with its own words, or cannot be compiled.
        ValueError: the last message cannot be gone on with, or a variable has a message's name.
    """
    if not messages:
        raise ValueError("there is no message")
    if continue_final_message and add_generation_prompt:
        raise ValueError("add_generation_prompt and continue_final_message exclude each other")
    taken = [name for name in _OWN if name in variables]
    if taken:
        raise ValueError(f"{taken[0]} cannot be set as a variable of the template")
    chat = [_prepare(message) for message in messages]
    if continue_final_message:
        _mark_end(chat[-1], template)
    context = {
        "documents": None,
        **_plain(variables),
        "messages": chat,
        "tools": _plain(list(tools)) or None,
        "add_generation_prompt": add_generation_prompt,
    }
    rendered = _compile(template).render(context)
    return _cut(rendered) if continue_final_message else rendered


def _prepare(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it: no nulls, its reasoning under every name.

    Clients send `"tool_calls": null`; many templates ask only whether the key is there.
    """
    plain: dict[str, Any] = _plain(message)
    plain = {key: value for key, value in plain.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is None:
        return plain
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """Rebuild a value of JSON's types; anything else becomes its type's name in brackets.

    Methods of richer objects are nothing that a sandbox knows to be dangerous.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


def _mark_end(message: dict[str, Any], template: str) -> None:
    content = message.get("content")
    if content is None or "content" not in template:
        raise ValueError("continue_final_message: the last message has no content that is shown")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return
    parts = content if isinstance(content, list) else []
    texts = [part for part in parts if isinstance(part, dict) and "text" in part]
    if not texts:
        raise ValueError("continue_final_message: the last message has no text")
    texts[-1]["text"] += _MARK


def _cut(rendered: str) -> str:
    """Return a prompt up to the mark; what the template trimmed of the mark, it trims of all."""
    end = rendered.rfind(_MARK.strip())
    if end < 0:
        raise ValueError("continue_final_message: the template does not show the last message")
    is_trimmed = not rendered.startswith(_MARK, end)
    return rendered[:end].rstrip() if is_trimmed else rendered[:end]


@lru_cache(maxsize=32)
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


class _Generation(Extension):
    """{% generation %} marks what a model is trained on; here its body is shown as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict` for templates: makes dicts, and has no attributes to climb out by."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace` for templates; no attribute that Python gives a meaning can be set."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template's namespace cannot have an attribute {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Python does; jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)
