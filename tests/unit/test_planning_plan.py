"""make_plan: the ledger closes, every flag has its reason, refusals say the way out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidDemandError,
    cpu_device,
    find_model,
    gpu_from_spec,
    gpu_products,
    make_plan,
    model_ids,
    plan_to_dict,
    recommend_cpu_memory,
    render_plan,
)

GIB = 2**30
SMALL = "Qwen/Qwen3-0.6B"


def plan(model_id=SMALL, device=None, **demands):
    return make_plan(find_model(model_id), device or gpu_from_spec("NVIDIA-L4"), Demands(**demands))


def value(found, flag):
    return next(setting.value for setting in found.settings if setting.flag == flag)


devices = st.one_of(
    st.sampled_from(sorted(gpu_products())).map(gpu_from_spec),
    st.integers(2**28, 2**37).map(lambda size: cpu_device(size, source="limit")),
)
demands = st.builds(
    Demands,
    max_model_len=st.none() | st.integers(1, 8192),
    max_num_seqs=st.none() | st.integers(1, 1024),
    max_num_batched_tokens=st.none() | st.integers(1, 65536),
    block_size=st.none() | st.sampled_from([16, 32, 64, 128]),
    gpu_memory_utilization=st.none() | st.floats(0.05, 1),
    swap_space=st.none() | st.floats(0, 64),
    quantization=st.sampled_from(["none", "int8"]),
    kv_cache_dtype=st.sampled_from(["auto", "int8", "fp8"]),
)


@given(st.sampled_from(model_ids()), devices, demands)
def test_every_plan_closes_its_ledger_and_holds_one_request(model_id, device, demanded):
    try:
        found = make_plan(find_model(model_id), device, demanded)
    except (DoesNotFitError, InvalidDemandError):
        return
    assert sum(line.num_bytes for line in found.ledger) == device.memory_bytes
    assert all(line.num_bytes >= 0 and line.how for line in found.ledger)
    assert found.kv_tokens >= found.max_model_len
    assert all(setting.reason for setting in found.settings)


@given(st.sampled_from(model_ids()), devices, demands)
def test_a_refusal_names_a_length_that_really_fits_and_none_longer(model_id, device, demanded):
    model = find_model(model_id)
    try:
        make_plan(model, device, demanded)
    except DoesNotFitError as error:
        largest = error.largest_model_len
    except InvalidDemandError:
        return
    else:
        return
    if demanded.max_model_len is None:
        return
    changed = {name: getattr(demanded, name) for name in demanded.__slots__}
    for length, expected in ((largest, True), (largest + 1, False)):
        if length:
            assert is_possible(model, device, {**changed, "max_model_len": length}) is expected


def is_possible(model, device, settings):
    try:
        make_plan(model, device, Demands(**settings))
    except DoesNotFitError:
        return False
    return True


def test_127_tokens_in_blocks_of_16_take_8_blocks():
    found = plan(max_model_len=127, block_size=16, num_gpu_blocks_override=8)
    assert found.num_blocks == 8
    with pytest.raises(DoesNotFitError, match="one request needs 8 blocks"):
        plan(max_model_len=127, block_size=16, num_gpu_blocks_override=7)


def test_2048_blocks_of_an_8b_model_take_four_and_a_half_gibibytes():
    found = plan("Qwen/Qwen3-8B", gpu_from_spec("NVIDIA-H200"), block_size=16)
    assert found.block_bytes * 2048 == 4.5 * GIB


@pytest.mark.parametrize(
    ("product", "utilization", "block_size", "context"),
    [
        ("NVIDIA-GeForce-RTX-3060", "0.5", "16", "8192"),
        ("NVIDIA-GeForce-RTX-4090", "0.85", "32", "32768"),
        ("NVIDIA-A100-SXM4-80GB", "0.9", "64", "32768"),
    ],
)
def test_the_profiles_people_run_by_hand_are_kept_where_the_ledger_allows(
    product, utilization, block_size, context
):
    found = plan(SMALL, gpu_from_spec(product))
    assert value(found, "--gpu-memory-utilization") == utilization
    assert value(found, "--block-size") == block_size
    assert value(found, "--max-model-len") == context


def test_utilisation_is_raised_only_with_a_stated_reason():
    found = plan("Qwen/Qwen3-4B", gpu_from_spec("NVIDIA-GeForce-RTX-3060"))
    setting = next(s for s in found.settings if s.flag == "--gpu-memory-utilization")
    assert float(setting.value) > 0.5
    assert "raised from 0.5" in setting.reason


def test_a_planned_context_shrinks_to_what_fits_and_says_so():
    found = plan("Qwen/Qwen3-8B")
    setting = next(s for s in found.settings if s.flag == "--max-model-len")
    assert 8192 < int(setting.value) < 32768
    assert setting.reason.startswith("the most that fits")


def test_demanded_settings_are_taken_as_they_are():
    found = plan(
        max_model_len=4096, max_num_seqs=3, max_num_batched_tokens=100, block_size=128,
        gpu_memory_utilization=0.4, enable_prefix_caching=False,
    )  # fmt: skip
    assert found.args() == [
        "--dtype", "bfloat16", "--max-model-len", "4096", "--block-size", "128",
        "--gpu-memory-utilization", "0.4", "--max-num-batched-tokens", "100",
        "--max-num-seqs", "3", "--swap-space", "0", "--no-enable-prefix-caching",
    ]  # fmt: skip


def test_cards_without_bfloat16_get_float16_and_refuse_a_demand_for_bfloat16():
    found = plan(SMALL, gpu_from_spec("Tesla-T4"))
    assert found.dtype == "float16"
    with pytest.raises(InvalidDemandError, match="no bfloat16; use float16"):
        plan(SMALL, gpu_from_spec("Tesla-T4"), dtype="bfloat16")


def test_a_cpu_plans_inside_its_memory_limit_and_tells_the_engine():
    found = plan(SMALL, cpu_device(4 * GIB, source="limit"))
    assert found.args()[-2:] == ["--device", "cpu"]
    kv = next(line for line in found.ledger if line.component == "kv-cache")
    assert 0 < kv.num_bytes < 4 * GIB


def test_a_large_cpu_keeps_no_more_blocks_than_sequences_can_use():
    found = plan(SMALL, cpu_device(64 * GIB, source="limit"))
    assert found.kv_tokens == found.max_num_seqs * found.max_model_len


def test_memory_shared_with_other_programs_is_used_by_half():
    laptop = cpu_device(16 * GIB, source="machine", dedicated=False)
    assert plan(SMALL, laptop).gpu_memory_utilization == 0.5


def test_the_recommended_memory_holds_four_requests_of_full_length():
    for model_id in (SMALL, "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-VL-2B-Instruct"):
        size = recommend_cpu_memory(find_model(model_id), Demands())
        assert size % GIB == 0
        found = plan(model_id, cpu_device(size, source="recommended"))
        assert found.kv_tokens >= 4 * found.max_model_len


def test_a_refusal_gives_the_figures_the_length_and_a_change_that_helps():
    with pytest.raises(DoesNotFitError) as caught:
        plan("Qwen/Qwen3-8B", max_model_len=40960)
    largest = caught.value.largest_model_len
    assert f"Set maxModelLen (--max-model-len) to {largest} or less" in str(caught.value)
    assert "weights 15.26 GiB" in str(caught.value)
    assert plan("Qwen/Qwen3-8B", max_model_len=largest).max_model_len == largest


def test_the_memory_a_refusal_asks_for_is_enough_and_not_a_mebibyte_too_much():
    with pytest.raises(DoesNotFitError) as caught:
        plan("Qwen/Qwen3-14B", max_model_len=8192)
    needed = int(caught.value.suggestion.split("at least ")[1].split(" MiB")[0].replace(",", ""))
    card = gpu_from_spec("X", needed)
    assert plan("Qwen/Qwen3-14B", card, max_model_len=8192, gpu_memory_utilization=0.9)
    with pytest.raises(DoesNotFitError):
        plan(
            "Qwen/Qwen3-14B", gpu_from_spec("X", needed - 1),
            max_model_len=8192, gpu_memory_utilization=0.9,
        )  # fmt: skip


def test_a_low_utilisation_is_named_as_the_way_out():
    with pytest.raises(DoesNotFitError, match=r"Raise gpuMemoryUtilization .* to 0.9"):
        plan("Qwen/Qwen3-8B", max_model_len=8192, gpu_memory_utilization=0.5)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("max_model_len", 0),
        ("max_num_seqs", -1),
        ("block_size", 24),
        ("gpu_memory_utilization", 1.5),
        ("dtype", "int3"),
        ("num_gpu_blocks_override", 0),
    ],
)
def test_a_demand_out_of_range_names_field_and_value(field, wrong):
    with pytest.raises(InvalidDemandError) as caught:
        Demands(**{field: wrong})
    assert (caught.value.field, caught.value.value) == (field, wrong)


def test_more_positions_than_the_model_has_are_refused():
    with pytest.raises(InvalidDemandError, match="40,960 positions"):
        plan(max_model_len=50000)


def test_the_json_form_has_no_floats_and_the_table_shows_every_line():
    found = plan()
    text = render_plan(found)
    document = plan_to_dict(found)
    assert json.loads(json.dumps(document)) == document
    assert not [v for v in walk(document) if isinstance(v, float)]
    for line in found.ledger:
        assert line.how in text
    for setting in found.settings:
        assert setting.reason in text


def walk(node):
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    for child in children:
        yield from walk(child)
    if not children:
        yield node
