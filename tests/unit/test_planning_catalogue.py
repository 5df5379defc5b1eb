"""GPUs and models the planner knows, and how names people write find them."""

import json

import pytest

from qwen_engine.planning import (
    UnknownGpuError,
    UnsupportedModelError,
    find_model,
    gpu_from_spec,
    gpu_products,
    model_ids,
    num_parameters,
    product_named,
    published_ids,
    read_model_facts,
    variants_of,
    weight_bytes,
)
from qwen_engine.planning.weights import num_tower_parameters
from qwen_engine.tuning import read_shape

GIB = 2**30
MIB = 2**20


@pytest.mark.parametrize(
    ("said", "product"),
    [
        ("NVIDIA-L4", "NVIDIA-L4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA-GeForce-RTX-4090"),
        ("rtx 3090 ti", "NVIDIA-GeForce-RTX-3090-Ti"),
        ("RTX 3090", "NVIDIA-GeForce-RTX-3090"),
        ("A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA A100 80GB", "NVIDIA-A100-80GB-PCIe"),
        ("Tesla T4", "Tesla-T4"),
        ("l40s", "NVIDIA-L40S"),
        ("L40", "NVIDIA-L40"),
        ("h100", "NVIDIA-H100-PCIe"),
        ("GB10 (unified memory)", "NVIDIA-GB10"),
        ("a card", None),
    ],
)
def test_names_people_write_find_their_product(said, product):
    assert product_named(said) == product


def test_the_catalogue_covers_what_people_serve_on():
    rows = gpu_products()
    assert len(rows) >= 40
    for name in (
        "NVIDIA-A16", "NVIDIA-H20", "NVIDIA-H100-NVL", "NVIDIA-GH200-480GB", "NVIDIA-GB200",
        "NVIDIA-B200", "NVIDIA-B300-SXM6-AC", "NVIDIA-GeForce-RTX-4090-Laptop-GPU",
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "Tesla-V100-SXM2-16GB", "NVIDIA-A10G",
    ):  # fmt: skip
        assert rows[name].source in ("G", "U", "S", "D"), name
        assert rows[name].bandwidth_gbs > 100, name


def test_compute_capabilities_are_compared_as_numbers():
    assert gpu_products()["NVIDIA-B200"].capability > gpu_products()["NVIDIA-L4"].capability


def test_a_slice_or_a_virtual_gpu_named_by_hand_has_the_size_in_its_name():
    for product in ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA-A10-10Q"):
        found = gpu_from_spec(product)
        assert 8.5 * GIB < found.memory_bytes < 9.3 * GIB
        assert found.capability in ((8, 0), (8, 6))


def test_an_unknown_product_names_a_near_one():
    with pytest.raises(UnknownGpuError, match="did you mean NVIDIA-GeForce-RTX-4090"):
        gpu_from_spec("RTX 4090")


@pytest.mark.parametrize(
    ("product", "seen_gib"),
    [
        ("NVIDIA-GeForce-RTX-3090", 23.58),
        ("NVIDIA-GeForce-RTX-4090", 23.55),
        ("NVIDIA-H100-80GB-HBM3", 79.18),
        ("NVIDIA-A100-SXM4-80GB", 79.25),
        ("NVIDIA-A100-SXM4-40GB", 39.39),
        ("Tesla-T4", 14.56),
    ],
)
def test_what_cuda_reports_is_known_from_the_drivers_size(product, seen_gib):
    assert gpu_from_spec(product).visible_bytes / GIB == pytest.approx(seen_gib, abs=0.06)


@pytest.mark.parametrize(
    ("model_id", "parameters"),
    [
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480_154_875_392),
        ("Qwen/Qwen3-VL-2B-Instruct", 2_127_532_032),
        ("Qwen/Qwen3-VL-8B-Instruct", 8_767_123_696),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 31_070_754_032),
        ("Qwen/Qwen2.5-VL-3B-Instruct", 3_754_622_976),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656),
    ],
)
def test_experts_and_towers_are_counted_as_the_hub_counts_them(model_id, parameters):
    model = find_model(model_id)
    assert num_parameters(model) + num_tower_parameters(model) == parameters


def test_every_published_id_can_be_planned_and_ours_are_among_them():
    assert len(published_ids()) > 100
    assert set(model_ids()) < set(published_ids())
    assert "Qwen/Qwen3-8B" in model_ids()
    assert "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8" in published_ids()
    assert variants_of("qwen/qwen3-8b") == ["Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B-AWQ"]


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 1024, "max_position_embeddings": 1024, "dtype": "bfloat16",
}  # fmt: skip


def quantised(**config):
    return read_model_facts({**CONFIG, "quantization_config": config}, model_id="x")


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4.125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}, 8.125),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8.111),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "mxfp4"}, 4.25),
        (
            {
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {
                    "num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": True}}},
            },
            4.125,
        ),
    ],
)  # fmt: skip
def test_each_format_has_its_bits_a_weight_and_leaves_the_tables_in_16(config, bits):
    plain = read_model_facts(CONFIG, model_id="x")
    matrices = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)
    saved = weight_bytes(plain, "bfloat16") - weight_bytes(quantised(**config), "bfloat16")
    assert 16 - saved * 8 / matrices == pytest.approx(bits, rel=0.01)


def test_modules_that_a_checkpoint_leaves_alone_stay_in_16_bits():
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    packed = quantised(**fp8)
    kept = quantised(**fp8, modules_to_not_convert=["self_attn.o_proj", "lm_head"])
    scales = 2 * 4 * (256 // 128) ** 2
    more = weight_bytes(kept, "bfloat16") - weight_bytes(packed, "bfloat16")
    assert more == 2 * 256 * 256 - scales


def test_a_format_without_known_sizes_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="aqlm"):
        quantised(quant_method="aqlm")


def test_the_files_of_a_packed_checkpoint_win_over_what_is_computed(tmp_path):
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
    computed = weight_bytes(quantised(quant_method="fp8"), "bfloat16")
    (tmp_path / "config.json").write_text(json.dumps(config))
    for size in (computed, computed + 4096):
        header = json.dumps(
            {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        ).encode()
        file = tmp_path / "model.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        shape = read_shape(tmp_path, for_any_engine=True)
        assert weight_bytes(shape, "bfloat16") == pytest.approx(size, abs=1)
