"""Weight bytes are exact: checked against safetensors files and against engines' own logs."""

import json
from math import prod

import pytest

from qwen_engine.planning import (
    InvalidConfigError,
    UnknownModelError,
    UnsupportedModelError,
    find_model,
    model_ids,
    num_parameters,
    parameter_shapes,
    parse_model_config,
)
from qwen_engine.tuning import read_shape
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import SHAPES, build_tiny

# GiB that vLLM printed for "model weights take" on one GPU in 16 bits; its allocator rounds
# tensors above 10 MiB up to 2 MiB and it keeps the rotary table, hence the tolerance upwards only.
LOGGED_GIB = {
    "Qwen/Qwen3-0.6B": 1.12,
    "Qwen/Qwen3-1.7B": 3.22,
    "Qwen/Qwen3-4B": 7.5552,
    "Qwen/Qwen3-8B": 15.27,
    "Qwen/Qwen3-14B": 27.52,
    "Qwen/Qwen3-32B": 61.0347,
    "Qwen/Qwen2.5-1.5B-Instruct": 2.8875,
    "Qwen/Qwen2.5-7B-Instruct": 14.2488,
    "meta-llama/Llama-3.1-8B-Instruct": 14.9888,
}


@pytest.mark.parametrize("model_id", LOGGED_GIB)
def test_weights_agree_with_start_up_logs(model_id):
    gib = num_parameters(find_model(model_id)) * 2 / 2**30
    assert gib <= LOGGED_GIB[model_id] + 0.005
    assert gib == pytest.approx(LOGGED_GIB[model_id], rel=0.012)


@pytest.mark.parametrize(
    ("model_id", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
    ],
)
def test_parameter_counts_are_those_the_hub_shows(model_id, parameters):
    assert num_parameters(find_model(model_id)) == parameters


@pytest.mark.parametrize("name", ["smollm2", *SHAPES])
def test_names_and_shapes_equal_the_headers_of_a_checkpoint(name):
    folder = build_smollm2() if name == "smollm2" else build_tiny(name)
    model = read_shape(folder)
    skipped = model.traits.skipped_prefix or "-"
    assert dict(parameter_shapes(model)) == {
        tensor: shape
        for file in folder.glob("*.safetensors")
        for tensor, shape in header_shapes(file).items()
        if not tensor.startswith(skipped)
    }


def header_shapes(path):
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {name: tuple(tensor["shape"]) for name, tensor in header.items()}


@pytest.mark.parametrize("model_id", model_ids())
def test_the_count_is_the_sum_over_all_parameters(model_id):
    model = find_model(model_id)
    assert num_parameters(model) == sum(prod(shape) for _, shape in parameter_shapes(model))


def test_a_config_with_a_billion_layers_is_counted_at_once():
    model = parse_model_config({**CONFIG, "num_hidden_layers": 10**9}, model_id="x")
    assert num_parameters(model) > 10**13


def test_every_catalogue_model_parses_and_is_found_without_case():
    for model_id in model_ids():
        assert find_model(model_id.upper()).model_id == model_id


def test_an_unknown_id_names_the_ways_out():
    with pytest.raises(UnknownModelError, match=r"spec\.model\.config"):
        find_model("acme/Qwen9")


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 2**31}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"architectures": []}, "architectures"),
        ({"head_dim": 65}, "head_dim"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"rope_scaling": [4]}, "rope_scaling"),
        ({"text_config": 3}, "text_config"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused_by_field(change, field):
    with pytest.raises(InvalidConfigError) as caught:
        parse_model_config({**CONFIG, **change}, model_id="x")
    assert caught.value.field == field


EXPERTS = {
    **CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"decoder_sparse_step": 2, "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"mlp_only_layers": 1}, "mlp_only_layers"),
        ({"mlp_only_layers": ["1"]}, "mlp_only_layers"),
    ],
)
def test_experts_that_cannot_be_right_are_refused_by_field(change, field):
    with pytest.raises(InvalidConfigError) as caught:
        parse_model_config({**EXPERTS, **change}, model_id="x")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"dtype": "int3"}, "int3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
    ],
)
def test_what_this_version_cannot_run_is_refused_by_name(change, word):
    with pytest.raises(UnsupportedModelError, match=word):
        parse_model_config({**CONFIG, **change}, model_id="x")


def test_yarn_stretches_the_length_that_can_be_planned():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert parse_model_config({**CONFIG, "rope_scaling": yarn}, model_id="x").max_len == 4096


def test_a_vision_models_text_part_is_read_with_its_names():
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {**CONFIG, "architectures": None},
        "vision_config": {"depth": 2},
        "tie_word_embeddings": True,
    }
    model = parse_model_config(config, model_id="x")
    names = [name for name, _ in parameter_shapes(model)]
    assert names[0] == "model.language_model.embed_tokens.weight"
    assert "lm_head.weight" not in names


def test_the_old_spelling_of_the_data_type_is_read():
    config = {**CONFIG, "dtype": None, "torch_dtype": "torch.float16"}
    assert parse_model_config(config, model_id="x").dtype == "float16"
