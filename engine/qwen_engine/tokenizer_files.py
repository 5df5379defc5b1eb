"""What a model folder says of its tokenizer: the file, its special tokens, its chat templates.

Called by `tokenizer`. Reads tokenizer.json and what lies beside it as transformers 5.24 does
(tokenization_utils_base.py, tokenization_utils_tokenizers.py), without importing it: that takes a
second at every start. Folders that have no tokenizer.json are left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_engine.errors import TokenizerError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
          "mask_token")  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A folder's tokenizer."""

    fast: Any  # tokenizers.Tokenizer
    special_tokens: Mapping[str, str]  # by name, such as eos_token; templates read them
    templates: Mapping[str, str]  # chat templates by name; a single one is "default"


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a model folder; runs no code of it.

    Raises:
        TokenizerError: there is none, it is damaged, or it needs code from the folder.
    """
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        # transformers would make one with an empty vocabulary.
        raise TokenizerError(path, f"is missing: there is none of {', '.join(_TOKENIZER_FILES)}")
    try:
        found = _read(path) if (path / "tokenizer.json").is_file() else _read_by_transformers(path)
    except Exception as error:  # whatever the parsers raise
        raise TokenizerError(path, f"cannot be read: {first_line(error)}") from error
    if found is None:
        raise TokenizerError(path, "has no tokenizer.json and none can be made from its files")
    return found


def first_line(error: Exception) -> str:
    """Return the beginning of what an error says."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def _read(path: Path) -> TokenizerFiles:
    from tokenizers import Tokenizer

    fast = Tokenizer.from_file(str(path / "tokenizer.json"))
    config = _read_object(path / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read_object(path / "special_tokens_map.json")
    named = {name: _content(config[name]) for name in _NAMED if config.get(name)}
    missing = list(_missing_tokens(fast, config))
    if missing:
        fast.add_tokens(missing)
    return TokenizerFiles(fast, named, _read_templates(path, config))


def _missing_tokens(fast: Any, config: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the tokens that the configuration has and tokenizer.json lacks, or has otherwise."""
    own = fast.get_added_tokens_decoder().values()
    seen, known = {repr(token) for token in own}, {token.content for token in own}
    listed = config.get("added_tokens_decoder") or {}
    for _, fields in sorted(listed.items(), key=lambda item: int(item[0])):
        token = _added_token(fields)
        known.add(token.content)
        if repr(token) not in seen:
            yield token
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = [config.get(name) for name in _NAMED]
    values += extra.values() if isinstance(extra, Mapping) else extra
    for value in filter(None, values):
        if _content(value) not in known:
            known.add(_content(value))
            yield _added_token(value, special=True)


def _added_token(value: Any, **flags: bool) -> Any:
    from tokenizers import AddedToken

    if isinstance(value, Mapping):
        flags = {name: bool(value[name]) for name in _FLAGS if name in value} | flags
    return AddedToken(_content(value), **flags)


def _content(value: Any) -> str:
    """Return the text of a token, which files have plain or as an object."""
    return str(value["content"] if isinstance(value, Mapping) else value)


def _read_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of files, or else the configuration's."""
    files = {file.stem: file for file in (path / "additional_chat_templates").glob("*.jinja")}
    if (path / "chat_template.jinja").is_file():
        files["default"] = path / "chat_template.jinja"
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    found = config.get("chat_template")
    if isinstance(found, list):
        return {str(each["name"]): str(each["template"]) for each in found}
    return {"default": found} if isinstance(found, str) else {}


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} must hold an object")
    return found


def _read_by_transformers(path: Path) -> TokenizerFiles | None:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    fast = getattr(found, "backend_tokenizer", None)
    if fast is None:
        return None
    templates = found.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    return TokenizerFiles(fast, dict(found.special_tokens_map), templates)
