"""The tokenizer of a model folder, compared with the Rust tokenizer's own decoding."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.errors import ChatTemplateError, RequestError, TokenizerError
from qwen_engine.tokenizer import Tokenizer
from tests.models.tiny import build_tiny


@pytest.fixture(scope="module")
def folder() -> Path:
    return build_tiny("qwen3-tied")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@given(ids=st.lists(st.integers(0, 383), max_size=40), skip=st.booleans())
def test_token_by_token_gives_the_text_of_decoding_at_once(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    detokenizer = tokenizer.detokenizer([], skip_special_tokens=skip)
    text = "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.flush()
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_ids_are_those_of_transformers_own_choice_of_class(
    tokenizer: Tokenizer, folder: Path
) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>user\nThe fox, l'été  1234 日本 🎉<|im_end|>\n"
    assert tokenizer.encode(text) == reference(text)["input_ids"]


def test_special_tokens_are_hidden_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>")
    hidden = tokenizer.detokenizer([])
    shown = tokenizer.detokenizer([], skip_special_tokens=False)
    assert hidden.feed(ids) + hidden.flush() == "hi"
    assert shown.feed(ids) + shown.flush() == "<|im_start|>hi<|im_end|>"


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.detokenizer([]).feed([10**6]) == ""


def test_messages_become_the_templates_text(tokenizer: Tokenizer) -> None:
    text = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_lone_surrogate_is_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_a_template_that_refuses_is_a_request_error_with_its_words(folder: Path) -> None:
    template = "{{ raise_exception('System message must be first.') }}"
    strict = Tokenizer.from_folder(folder, chat_template=template)
    with pytest.raises(ChatTemplateError, match="System message must be first"):
        strict.render_chat([{"role": "user", "content": "Hi"}])


def test_a_template_cannot_reach_python(folder: Path) -> None:
    template = "{{ messages.__class__.__mro__[-1].__subclasses__() }}"
    hostile = Tokenizer.from_folder(folder, chat_template=template)
    with pytest.raises(ChatTemplateError, match="unsafe"):
        hostile.render_chat([{"role": "user", "content": "Hi"}])


def test_a_model_without_template_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    plain = Tokenizer.from_folder(tmp_path)
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        plain.render_chat([{"role": "user", "content": "Hi"}])


def test_a_folder_without_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(TokenizerError, match="tokenizer"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("keep", ["tokenizer.json", "vocab.json"])
def test_code_in_a_model_folder_is_never_run(folder: Path, tmp_path: Path, keep: str) -> None:
    (tmp_path / keep).write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    trace = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    with contextlib.suppress(TokenizerError):
        Tokenizer.from_folder(tmp_path)
    assert not trace.exists()
