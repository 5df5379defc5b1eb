"""The fields that ask for a form: OpenAI's response_format, vLLM's older and newer names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qwen_engine.server.protocol.fields import Fields, describe
from qwen_engine.structured import Form

MAX_CHOICES = 1000
MAX_SOURCE_CHARS = 100_000  # of a regex or grammar

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def parse_form(fields: Fields) -> Form | None:
    """Read the one form that is asked for; None for free text."""
    found = [_response_format(fields), *_named(fields, "guided_"), *_structured_outputs(fields)]
    forms = [form for form in found if form is not None]
    if len(forms) > 1:
        raise fields.error(forms[1].param, f"cannot be given together with {forms[0].param}")
    return forms[0] if forms else None


def _response_format(fields: Fields) -> Form | None:
    given = fields.object("response_format")
    if given is None:
        return None
    inner = Fields(given, "response_format")
    kind = inner.string("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Form("json", _ANY_OBJECT, "response_format")
    if kind != "json_schema":
        why = f"must be 'text', 'json_object' or 'json_schema', not {describe(kind)}"
        raise inner.error("type", why)
    described = Fields(inner.value("json_schema"), "response_format.json_schema")
    schema = described.object("schema")
    if schema is None:
        raise described.error("schema", "is missing: a JSON schema is needed")
    return Form("json", schema, described.param("schema"))


def _structured_outputs(fields: Fields) -> list[Form | None]:
    given = fields.object("structured_outputs")
    if given is None:
        return []
    inner = Fields(given, "structured_outputs")
    forms = _named(inner, "")
    if inner.boolean("json_object"):
        forms.append(Form("json", _ANY_OBJECT, inner.param("json_object")))
    if inner.value("structural_tag") is not None:
        raise inner.error("structural_tag", "is not supported by this version")
    fields.note_ignored(inner)
    return forms


def _named(fields: Fields, prefix: str) -> list[Form | None]:
    readers: list[Callable[[Fields, str], Form | None]] = [_json, _regex, _choice, _grammar]
    return [read(fields, prefix + read.__name__.lstrip("_")) for read in readers]


def _json(fields: Fields, name: str) -> Form | None:
    """Read a schema: an object, or its text."""
    value = fields.value(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise fields.error(name, "is not valid JSON") from error
    if value is None:
        return None
    if not isinstance(value, dict):
        raise fields.error(name, f"must be a JSON schema, not {describe(value)}")
    return Form("json", value, fields.param(name))


def _regex(fields: Fields, name: str) -> Form | None:
    text = _bounded_text(fields, name)
    return None if text is None else Form("regex", text, fields.param(name))


def _grammar(fields: Fields, name: str) -> Form | None:
    text = _bounded_text(fields, name)
    return None if text is None else Form("grammar", text, fields.param(name))


def _bounded_text(fields: Fields, name: str) -> str | None:
    text = fields.string(name)
    if text is not None and not 1 <= len(text) <= MAX_SOURCE_CHARS:
        why = f"must have 1 to {MAX_SOURCE_CHARS:,} characters, not {len(text):,}"
        raise fields.error(name, why)
    return text


def _choice(fields: Fields, name: str) -> Form | None:
    choices = fields.array(name)
    if not choices:
        return None
    if len(choices) > MAX_CHOICES:
        raise fields.error(name, f"may have at most {MAX_CHOICES} strings, not {len(choices)}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise fields.error(
                name, f"must hold strings that are not empty, not {describe(choice)}"
            )
    return Form("choice", tuple(choices), fields.param(name))
