"""config.json to facts: defaults as transformers has them, and clear words for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qwen_engine.config import EngineConfig
from qwen_engine.errors import (
    ConfigError,
    InvalidModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from qwen_engine.model_config import ModelConfig, parse_model_config

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "eos_token_id": 151645,
}


def parse(**changes: Any) -> ModelConfig:
    return parse_model_config({**QWEN3, **changes})


def test_qwen3_0_6b_is_read() -> None:
    config = parse()
    assert (config.q_size, config.kv_size, config.head_dim) == (2048, 1024, 128)
    assert config.qk_norm
    assert config.tie_word_embeddings
    assert not config.qkv_bias
    assert config.rope.theta == 1e6
    assert config.dtype == "bfloat16"
    assert config.eos_token_ids == {151645}
    assert config.max_len == 40960


def test_qwen2_has_biases_on_q_k_v_and_derives_its_head_dim() -> None:
    config = parse(architectures=["Qwen2ForCausalLM"], head_dim=None)
    assert config.qkv_bias
    assert not config.output_bias
    assert not config.qk_norm
    assert config.head_dim == 64


def test_qwen3_without_head_dim_has_128() -> None:
    assert parse(head_dim=None).head_dim == 128


def test_llama_biases_follow_their_switches() -> None:
    config = parse(architectures=["LlamaForCausalLM"], attention_bias=True, mlp_bias=True)
    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias


def test_missing_kv_heads_mean_as_many_as_heads() -> None:
    assert parse(num_key_value_heads=None).num_kv_heads == 16


def test_generation_config_overrides_the_stop_ids() -> None:
    config = parse_model_config(QWEN3, {"eos_token_id": [151645, 151643]})
    assert config.eos_token_ids == {151645, 151643}


def test_rope_is_read_in_its_new_form() -> None:
    rope = parse(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e6}).rope
    assert (rope.kind, rope.theta) == ("default", 5e6)


def test_llama3_rope_is_read_in_its_old_form() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = parse(rope_scaling=scaling).rope
    assert (rope.kind, rope.factor, rope.original_max_len) == ("llama3", 32.0, 8192)


def test_yarn_stretches_the_length() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = parse(rope_scaling=scaling)
    assert config.max_len == 131072
    assert config.rope.attention_factor == pytest.approx(1.1386, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": "awq"}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError, match=word):
        parse(**changes)


def test_a_sliding_window_that_no_layer_uses_is_fine() -> None:
    config = parse(use_sliding_window=True, sliding_window=4096, max_window_layers=28)
    assert config.num_layers == 28


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", None),
        ("architectures", []),
        ("architectures", "Qwen3ForCausalLM"),
        ("hidden_size", None),
        ("hidden_size", "1024"),
        ("hidden_size", 0),
        ("num_hidden_layers", True),
        ("vocab_size", -1),
        ("num_key_value_heads", 5),
        ("head_dim", 65),
        ("rms_norm_eps", 0),
        ("rope_theta", "big"),
        ("rope_scaling", [1]),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [1, None]),
    ],
)
def test_a_field_that_cannot_be_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidModelError) as caught:
        parse(**{field: value})
    assert caught.value.field == field


def test_a_missing_folder_or_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        ModelConfig.from_folder(tmp_path / "gone")
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_config_that_is_not_an_object_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == {7}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 0),
        ("num_gpu_blocks", -1),
        ("block_size", 0),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("num_threads", -1),
        ("dtype", "int8"),
    ],
)
def test_an_engine_setting_that_cannot_be_is_named(field: str, value: object) -> None:
    settings: dict[str, Any] = {"max_model_len": 8, "num_gpu_blocks": 8, field: value}
    with pytest.raises(ConfigError, match=field):
        EngineConfig(model_path=Path("/nowhere"), **settings)
