"""What an answer may go on with: the form, and the freedom before it."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_engine.errors import RequestError
from qwen_engine.structured import Calls, Form, GrammarCompiler, Thinking
from qwen_engine.tokenizer import Tokenizer
from qwen_engine.tokenizer_files import TokenizerFiles

VOCAB_SIZE = 400


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes, and Qwen3's tags as added tokens: no folder is needed."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<|im_end|>"])
    fast.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return Tokenizer(TokenizerFiles(fast, {"eos_token": "<|im_end|>"}, {}))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    assert tokenizer.eos_token_id is not None
    eos = frozenset({tokenizer.eos_token_id})
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=eos)


class Writer:
    """Writes text against a constraint, token by token."""

    def __init__(self, tokenizer: Tokenizer, constraint: Any) -> None:
        self._tokenizer = tokenizer
        self._constraint = constraint

    def may(self, text: str) -> bool:
        """Whether the first token of the text is allowed."""
        mask = self._constraint.allowed()
        token_id = self._tokenizer.encode(text)[0]
        return mask is None or bool(mask[token_id >> 3] >> (token_id & 7) & 1)

    def write(self, text: str) -> None:
        for token_id in self._tokenizer.encode(text):
            assert self.may(self._tokenizer.decode([token_id], skip_special_tokens=False)), text
            self._constraint.accept(token_id)

    def is_free(self) -> bool:
        return self._constraint.allowed() is None


def start(
    tokenizer: Tokenizer, compiler: GrammarCompiler, thinking: Thinking, value: str = "ab"
) -> Writer:
    grammar = compiler.compile(Form("regex", value, "guided_regex"))
    return Writer(tokenizer, grammar.constrain(thinking))


def test_a_prepared_compiler_reads_the_vocabulary_no_more(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.prepare()
    monkeypatch.setattr("llguidance.LLTokenizer", None)
    assert compiler.compile(Form("regex", "ab", "guided_regex"))


def test_a_vocabulary_that_cannot_be_read_is_no_end_of_the_launch(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    broken = GrammarCompiler(tokenizer, vocab_size=-1, eos_token_ids=frozenset())
    broken.prepare()
    assert "no grammars" in caplog.text


def test_without_thinking_the_form_holds_from_the_first_token(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    writer = start(tokenizer, compiler, Thinking.CLOSED)
    assert not writer.may("<think>")
    assert not writer.may("\n")
    writer.write("ab")
    assert writer.may("<|im_end|>")
    assert not writer.may("a")


def test_an_open_thinking_is_free_until_its_tag(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    writer = start(tokenizer, compiler, Thinking.OPEN)
    writer.write("xyz <think> ")
    assert writer.is_free()
    writer.write("</think>")
    assert not writer.may("x")
    assert writer.may("\n")
    writer.write("\nab<|im_end|>")


def test_a_possible_thinking_may_be_opened_at_the_start_only(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    for text in ("<think>free</think>ab<|im_end|>", "ab<|im_end|>"):
        start(tokenizer, compiler, Thinking.POSSIBLE).write(text)
    writer = start(tokenizer, compiler, Thinking.POSSIBLE)
    assert not writer.may("\n")
    writer.write("a")
    assert not writer.may("<think>")


def test_two_answers_of_one_grammar_do_not_disturb_each_other(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(Form("choice", ("ab", "cd"), "guided_choice"))
    first, second = (Writer(tokenizer, grammar.constrain(Thinking.CLOSED)) for _ in range(2))
    first.write("a")
    assert second.may("c")
    assert not first.may("c")


def test_after_the_end_nothing_but_the_end_may_follow(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    writer = start(tokenizer, compiler, Thinking.CLOSED)
    writer.write("ab<|im_end|>")
    assert writer.may("<|im_end|>")
    assert not writer.may("a")


@pytest.mark.parametrize("layout", ['{"a": 1}', '{"a":1}', '{\n    "a": 1\n}'])
def test_usual_layouts_of_json_are_free(
    tokenizer: Tokenizer, compiler: GrammarCompiler, layout: str
) -> None:
    grammar = compiler.compile(Form("json", {"type": "object"}, "response_format"))
    Writer(tokenizer, grammar.constrain(Thinking.CLOSED)).write(layout + "<|im_end|>")


def test_calls_may_be_several_only_where_that_is_allowed(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for is_parallel in (False, True):
        grammar = compiler.compile(None, Calls(({"name": "f"}, {"name": "g"}), is_parallel))
        writer = Writer(tokenizer, grammar.constrain(Thinking.CLOSED))
        writer.write(call)
        assert writer.may("\n") is is_parallel
        assert writer.may("<|im_end|>")


@pytest.mark.parametrize(
    "form",
    [
        Form("regex", "([", "guided_regex"),
        Form("json", {"type": "nonsense"}, "guided_json"),
        Form("json", {"x-guidance": 5, "type": 5}, "guided_json"),
        Form("grammar", "root ::= nothing", "guided_grammar"),
        Form("grammar", "\x00", "guided_grammar"),
        Form("choice", ("\ud800",), "guided_choice"),
        Form("json", _nested(5000), "guided_json"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(compiler: GrammarCompiler, form: Form) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(form)
    assert caught.value.param == form.param
