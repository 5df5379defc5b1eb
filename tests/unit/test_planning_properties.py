"""What must hold for every model, card and demand, for our engine and for vLLM."""

import time
from dataclasses import asdict, replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidDemandError,
    PlanningError,
    UnsupportedModelError,
    cpu_device,
    find_model,
    gpu_from_spec,
    gpu_products,
    make_plan,
    published_ids,
    weight_bytes,
)
from qwen_engine.planning.parallel import tensor_parallel_problem
from qwen_engine.planning.vllm_memory import vllm_weight_bytes
from qwen_engine.planning.vllm_step import VllmFlags, VllmStart

MODELS = st.sampled_from(published_ids()).map(find_model)
CARDS = st.sampled_from(sorted(gpu_products())).map(gpu_from_spec)
MIB = st.integers(4_000, 300_000)
ENGINES = st.sampled_from(["qwen", "vllm"])
DEMANDS = st.builds(
    Demands,
    engine=ENGINES,
    max_model_len=st.none() | st.integers(1, 40_000),
    max_num_seqs=st.none() | st.integers(1, 512),
    max_num_batched_tokens=st.none() | st.integers(512, 32_768),
    block_size=st.none() | st.sampled_from([16, 32, 64, 128]),
    gpu_memory_utilization=st.none() | st.floats(0.3, 0.98),
    longest_context=st.booleans(),
    enforce_eager=st.booleans(),
)


def planned(model, card, demands):
    """Return the plan; None where the card is too small. Other refusals end the example."""
    try:
        return make_plan(model, card, demands)
    except DoesNotFitError:
        return None
    except (InvalidDemandError, UnsupportedModelError):
        assume(False)


def card_of(mib, count=1):
    return replace(gpu_from_spec("MY-CARD", mib, capability=(8, 9)), count=count)


@settings(max_examples=40)
@given(MODELS, MIB, st.integers(0, 100_000), DEMANDS)
def test_more_memory_never_gives_a_shorter_context(model, mib, more, demands):
    small = planned(model, card_of(mib), demands)
    large = planned(model, card_of(mib + more), demands)
    if small is not None:
        assert large is not None
        assert large.max_model_len >= small.max_model_len


@settings(max_examples=40)
@given(MODELS, st.sampled_from([1, 2, 4, 8]))
def test_more_gpus_never_raise_the_weights_of_each(model, size):
    assume(tensor_parallel_problem(model, 2 * size) is None)
    assert weight_bytes(model, "bfloat16", 2 * size) <= weight_bytes(model, "bfloat16", size)
    starts = [
        VllmStart(
            model=model,
            device=card_of(80_000),
            dtype="bfloat16",
            flags=VllmFlags(tensor_parallel_size=t),
        )
        for t in (size, 2 * size)
    ]
    assert vllm_weight_bytes(starts[1]) <= vllm_weight_bytes(starts[0])


@settings(max_examples=40)
@given(MODELS, CARDS, DEMANDS, st.integers(1, 8))
def test_the_lines_of_the_ledger_add_up_to_the_byte(model, card, demands, count):
    found = planned(model, replace(card, count=count), demands)
    assume(found is not None)
    assert sum(line.num_bytes for line in found.ledger) == card.memory_bytes
    assert all(line.num_bytes >= 0 and line.how for line in found.ledger)
    assert all(setting.reason for setting in found.settings)
    assert found.kv_tokens >= found.max_model_len
    assert found.tensor_parallel_size <= count


@settings(max_examples=40)
@given(MODELS, CARDS, DEMANDS, st.data())
def test_what_fits_at_a_length_fits_at_every_shorter_one(model, card, demands, data):
    found = planned(model, card, demands)
    assume(found is not None)
    shorter = data.draw(st.integers(1, found.max_model_len))
    assert planned(model, card, replace(demands, max_model_len=shorter)) is not None


@settings(max_examples=40)
@given(MODELS, CARDS, DEMANDS)
@example(  # the pictures of the shorter context must not be larger than those it was judged by
    find_model("Qwen/Qwen3-VL-8B-Instruct"),
    gpu_from_spec("NVIDIA-L4"),
    Demands(max_model_len=38_105, max_num_batched_tokens=18_581),
)
def test_each_way_out_of_a_refusal_really_fits(model, card, demands):
    try:
        make_plan(model, card, demands)
    except DoesNotFitError as error:
        ways = error.ways
    except PlanningError:
        return
    else:
        return
    for way in ways:
        change = dict(way.change)
        other = find_model(change.pop("model")) if "model" in change else model
        gpu = gpu_from_spec(change.pop("gpu")) if "gpu" in change else card
        assert make_plan(other, gpu, Demands(**{**asdict(demands), **change})), way


def test_a_refusal_names_the_four_ways_out():
    with pytest.raises(DoesNotFitError) as caught:
        make_plan(
            find_model("Qwen/Qwen3-14B"),
            gpu_from_spec("NVIDIA-GeForce-RTX-5090"),
            Demands(max_model_len=32_768, engine="vllm"),
        )
    ways = {way.kind: way for way in caught.value.ways}
    assert ways["gpus"].change["tensor_parallel_size"] == 2
    assert ways["precision"].change["model"] == "Qwen/Qwen3-14B-FP8"
    assert ways["gpu"].change["gpu"] in gpu_products()
    assert "2 such GPUs fit it" in str(caught.value)
    with pytest.raises(DoesNotFitError) as caught:
        make_plan(
            find_model("Qwen/Qwen3-8B"), gpu_from_spec("NVIDIA-L4"), Demands(max_model_len=40_960)
        )
    assert {way.kind for way in caught.value.ways} >= {"length", "gpus", "precision", "gpu"}


def test_fp8_blocks_bound_the_number_of_gpus():
    """4B fails at 8 GPUs, the experts of 30B at 4, 235B at 8 (vllm-project/vllm issue 25292)."""
    largest = {
        name: max(t for t in (1, 2, 4, 8) if not tensor_parallel_problem(find_model(name), t))
        for name in ("Qwen/Qwen3-4B-FP8", "Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-235B-A22B-FP8")
    }
    assert largest == {
        "Qwen/Qwen3-4B-FP8": 4,
        "Qwen/Qwen3-30B-A3B-FP8": 2,
        "Qwen/Qwen3-235B-A22B-FP8": 4,
    }


def test_kv_heads_are_replicated_where_there_are_more_gpus():
    model = find_model("Qwen/Qwen3-235B-A22B-Instruct-2507")  # 4 KV heads
    card = gpu_from_spec("NVIDIA-H200")
    blocks = [
        make_plan(model, replace(card, count=t), Demands(engine="vllm", tensor_parallel_size=t))
        for t in (4, 8)
    ]
    assert blocks[0].block_bytes == blocks[1].block_bytes


@pytest.mark.parametrize(
    ("product", "said"),
    [("Tesla-T4", "cannot run"), ("NVIDIA-A10", "widened"), ("NVIDIA-L4", None)],
)
def test_fp8_weights_are_judged_by_the_cards_capability(product, said):
    model, card = find_model("Qwen/Qwen3-4B-FP8"), gpu_from_spec(product)
    if said == "cannot run":
        with pytest.raises(InvalidDemandError, match=r"8\.0 for the weights alone"):
            make_plan(model, card, Demands(engine="vllm"))
        return
    notes = " ".join(make_plan(model, card, Demands(engine="vllm")).warnings)
    assert (said in notes) if said else not notes


def test_our_own_engine_refuses_what_it_does_not_run_and_names_vllm():
    for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-8B-AWQ"):
        with pytest.raises(UnsupportedModelError, match="--engine vllm"):
            make_plan(find_model(name), gpu_from_spec("NVIDIA-H200"), Demands())


def test_experts_on_a_gpu_come_with_a_note_that_vllm_runs_them_together():
    model = find_model("Qwen/Qwen3-30B-A3B")
    [note] = make_plan(model, gpu_from_spec("NVIDIA-H200"), Demands()).warnings
    assert "spec.engine.runtime: VLLM" in note
    assert not make_plan(model, cpu_device(100 * 2**30, source="test"), Demands()).warnings


def test_our_own_engine_widens_fp8_and_says_so():
    card = gpu_from_spec("NVIDIA-L4")
    packed, plain = (
        make_plan(find_model(name), card, Demands())
        for name in ("Qwen/Qwen3-4B-FP8", "Qwen/Qwen3-4B")
    )
    assert packed.ledger == plain.ledger
    assert "widened to 16 bits" in packed.warnings[0]


def test_ways_out_are_those_of_the_checkpoint_that_was_asked_for():
    with pytest.raises(DoesNotFitError) as caught:
        make_plan(find_model("Qwen/Qwen3-32B-FP8"), gpu_from_spec("Tesla-T4"), Demands())
    assert "gpus" not in {way.kind for way in caught.value.ways}  # T4 cannot run FP8 in vLLM


def test_pictures_shrink_before_the_demanded_context_does():
    found = make_plan(
        find_model("Qwen/Qwen3-VL-8B-Instruct"),
        gpu_from_spec("NVIDIA-GeForce-RTX-4090"),
        Demands(engine="vllm", max_model_len=24_576),
    )
    flags = {setting.flag: setting for setting in found.settings}
    assert flags["--mm-processor-kwargs"].value == '{"max_pixels": 4194304}'
    assert "24,576 tokens of context" in flags["--mm-processor-kwargs"].reason


@pytest.mark.parametrize(
    ("model_id", "product", "engine"),
    [
        ("Qwen/Qwen3-8B", "NVIDIA-L4", "qwen"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", "NVIDIA-H200", "vllm"),
        ("Qwen/Qwen3-VL-32B-Instruct", "Tesla-T4", "vllm"),  # refused, with all ways out
    ],
)
def test_a_plan_takes_less_than_five_milliseconds(model_id, product, engine):
    model, card = find_model(model_id), replace(gpu_from_spec(product), count=8)
    took = []
    for _ in range(10):
        start = time.process_time()
        planned(model, card, Demands(engine=engine, max_model_len=32_768))
        took.append(time.process_time() - start)
    assert min(took) < 0.005


def test_the_longest_context_is_planned_where_it_is_asked_for():
    wanted = Demands(longest_context=True)
    model = find_model("Qwen/Qwen3-0.6B")
    assert make_plan(model, gpu_from_spec("NVIDIA-L4"), wanted).max_model_len == 40_960
