"""Chat templates give the prompts that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from qwen_engine.chat_template import render
from qwen_engine.tokenizer import Tokenizer
from qwen_engine.tokenizer_files import read_tokenizer
from tests.models.tiny import build_tiny

# What templates of published models use: loops and their controls, namespaces, filters, calls of
# tools, reasoning, a generation block, trimming, the special tokens.
BUSY = """\
{%- set ns = namespace(seen=0, last='') %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    <{{ message['role'] }}>
    {%- if message.content is string %}{{ message.content | trim }}
    {%- else %}{% for part in message.content or [] %}[{{ part.text }}]{% endfor %}
    {%- endif %}
    {%- if message.reasoning_content %}(thought: {{ message.reasoning_content }}){% endif %}
    {%- if message.thinking %}(also: {{ message.thinking }}){% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.arguments | tojson(indent=2) if call.function.arguments is mapping }}
    {%- endfor %}
    {%- if message.tool_calls is defined %}!{% endif %}
{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{% generation %}seen {{ ns.seen }}{% endgeneration %}{{ dict(a=1).a }} {{ eos_token }}
{%- if add_generation_prompt %}<assistant>{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "  Hello <b>é 日本 🎉</b>  ", "tool_calls": None},
    {"role": "skip", "content": "nothing"},
    {"role": "assistant", "content": "Well", "reasoning": "hm",
     "tool_calls": [{"function": {"name": "f", "arguments": {"city": "Łódź", "n": [1, None]}}}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b "}]},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def folder() -> Path:
    return build_tiny("qwen3-tied")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False, "bos_token": "<s>"}])
@pytest.mark.parametrize("template", [BUSY, PLAIN])
def test_a_prompt_is_the_one_of_transformers(
    folder: Path, reference: Any, template: str, tools: Any, prompts: bool, variables: Any
) -> None:
    expected = reference.apply_chat_template(
        CHAT, tools=tools or None, chat_template=template, tokenize=False,
        add_generation_prompt=prompts, **variables,
    )  # fmt: skip
    own = Tokenizer.from_folder(folder, chat_template=template)
    found = own.render_chat(CHAT, tools=tools, add_generation_prompt=prompts, variables=variables)
    assert found == expected


@pytest.mark.parametrize(
    ("template", "content"),
    [
        (PLAIN, "Once upon "),
        (PLAIN, "Once"),
        (BUSY, "Once upon "),
        (BUSY, "Once"),
        (BUSY, [{"type": "text", "text": "a"}, {"type": "text", "text": "Once "}]),
    ],
)
def test_a_message_goes_on_where_transformers_has_it_go_on(
    folder: Path, reference: Any, template: str, content: Any
) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": content}]
    expected = reference.apply_chat_template(
        chat, chat_template=template, tokenize=False, continue_final_message=True
    )
    own = Tokenizer.from_folder(folder, chat_template=template)
    rendering = {"add_generation_prompt": False, "continue_final_message": True}
    assert own.render_chat(chat, **rendering) == expected


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ dict.__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_is_held_in_the_sandbox(hostile: str) -> None:
    with pytest.raises(TemplateError):
        render(
            hostile, [{"role": "user", "content": "Hi"}], tools=[], add_generation_prompt=False,
            continue_final_message=False, variables={},
        )  # fmt: skip


def test_a_folders_special_tokens_and_templates_are_those_of_transformers(
    folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    added = {"content": "<|late|>", "lstrip": False, "normalized": False, "rstrip": False,
             "single_word": False, "special": False}  # fmt: skip
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"900": added},
        "eos_token": {**added, "__type": "AddedToken", "content": "<|end|>", "special": True},
        "pad_token": "<|im_end|>",
        "bos_token": None,
        "chat_template": [
            {"name": "default", "template": PLAIN},
            {"name": "tool_use", "template": "tools: {{ tools | length }}"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference, own = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.from_folder(tmp_path)
    text = "a <|late|> b<|end|>c <|im_end|>"
    assert own.encode(text) == reference(text)["input_ids"]
    assert own.eos_token_id == reference.eos_token_id
    assert read_tokenizer(tmp_path).special_tokens == reference.special_tokens_map
    chat = [{"role": "user", "content": "Hi"}]
    for tools in ([], TOOLS):
        expected = reference.apply_chat_template(
            chat, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
        assert own.render_chat(chat, tools=tools) == expected
