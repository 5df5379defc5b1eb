"""Pictures in the plan: their bytes, their bounds, and what they and the context give up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidDemandError,
    cpu_device,
    find_model,
    gpu_from_spec,
    make_plan,
)
from qwen_engine.planning.weights import num_tower_parameters

GIB = 2**30
VL = "Qwen/Qwen3-VL-8B-Instruct"
SMALL = "Qwen/Qwen3-VL-2B-Instruct"
CARD = "NVIDIA-GeForce-RTX-4090"


def plan(model_id=VL, device=None, **demands):
    return make_plan(find_model(model_id), device or gpu_from_spec(CARD), Demands(**demands))


def line(found, component):
    return next(x.num_bytes for x in found.ledger if x.component == component)


def setting(found, flag):
    return next(x for x in found.settings if x.flag == flag)


def test_an_8b_model_on_a_24_gb_card_sees_eight_megapixels_and_keeps_a_long_context():
    found = plan()
    assert line(found, "vision-tower") == 2 * num_tower_parameters(find_model(VL)) == 1_152_776_672
    assert line(found, "encoder-cache") == found.encoder_cache_tokens * 4 * 4096 * 2
    assert found.mm_processor_kwargs["max_pixels"] == 8192 * 1024
    assert 2 * 8192 <= found.max_model_len < 32_768
    assert "half of the context to text" in setting(found, "--mm-processor-kwargs").reason
    assert "beside pictures of 8,192 tokens" in setting(found, "--max-model-len").reason


def test_the_largest_picture_always_fits_into_the_encoder_cache_and_the_context():
    for mib in range(20_500, 81_000, 3_000):
        found = plan(device=gpu_from_spec("X", mib))
        largest = found.mm_processor_kwargs["max_pixels"] // 1024
        assert largest <= found.encoder_cache_tokens <= found.max_model_len, mib


def test_a_cpu_takes_a_megapixel_and_says_why():
    found = plan(SMALL, cpu_device(16 * GIB, source="limit"))
    assert found.mm_processor_kwargs == {
        "max_pixels": 2**20, "videos_kwargs": {"size": {"longest_edge": 2**21}},
    }  # fmt: skip
    assert "65,536 patches" in setting(found, "--mm-processor-kwargs").reason


def test_more_pictures_in_a_request_are_smaller_ones():
    few, many = (
        plan(max_model_len=16_384, limit_mm_per_prompt={"image": count, "video": 0})
        for count in (1, 8)
    )
    sizes = [found.mm_processor_kwargs["max_pixels"] for found in (few, many)]
    assert sizes == [8192 * 1024, 1024 * 1024]
    assert many.encoder_cache_tokens == 8 * 1024


def test_neither_pictures_nor_videos_is_text_only_without_the_tower():
    found = plan(limit_mm_per_prompt={"image": 0, "video": 0})
    assert found.encoder_cache_tokens == 0
    assert {x.component for x in found.ledger}.isdisjoint({"vision-tower", "encoder-cache"})
    assert found.load_bytes == plan().load_bytes - line(plan(), "vision-tower")
    assert json.loads(setting(found, "--limit-mm-per-prompt").value) == {"image": 0, "video": 0}


def test_without_videos_only_pictures_are_bounded():
    found = plan(limit_mm_per_prompt={"video": 0})
    assert list(found.mm_processor_kwargs) == ["max_pixels"]
    assert found.limit_mm_per_prompt["video"] == 0 < found.limit_mm_per_prompt["image"]


def test_demanded_bounds_are_taken_as_they_are_and_other_fields_are_handed_on():
    found = plan(mm_processor_kwargs={"max_pixels": 2**20, "fps": 1.0})
    assert found.mm_processor_kwargs["max_pixels"] == 2**20
    assert found.mm_processor_kwargs["fps"] == 1.0
    assert found.mm_processor_kwargs["videos_kwargs"] == {"size": {"longest_edge": 2**21}}
    size = plan(mm_processor_kwargs={"size": {"longest_edge": 2**20}})
    assert line(size, "activations") == line(found, "activations")


def test_no_demand_raises_the_bounds_of_the_checkpoints_own_processor():
    model = find_model(SMALL)
    small = replace(model, tower=replace(model.vision, image_pixels=65_536, video_pixels=131_072))
    wanted = {"max_pixels": 2**20, "videos_kwargs": {"size": {"longest_edge": 2**21}}, "fps": 1}
    found = make_plan(small, gpu_from_spec(CARD), Demands(mm_processor_kwargs=wanted))
    assert found.mm_processor_kwargs == {
        "max_pixels": 65_536, "videos_kwargs": {"size": {"longest_edge": 131_072}}, "fps": 1,
    }  # fmt: skip
    assert "checkpoint's own processor" in setting(found, "--mm-processor-kwargs").reason
    assert line(found, "activations") < line(plan(SMALL), "activations")


def test_videos_may_be_larger_than_pictures_where_the_checkpoints_processor_says_so():
    model = find_model(SMALL)
    tower = replace(model.vision, image_pixels=128 * 128, video_pixels=6 * 128 * 128)
    found = make_plan(replace(model, tower=tower), gpu_from_spec(CARD), Demands())
    assert found.mm_processor_kwargs["max_pixels"] == 128 * 128
    assert found.mm_processor_kwargs["videos_kwargs"]["size"]["longest_edge"] == 6 * 128 * 128


@pytest.mark.parametrize("device", [None, cpu_device(24 * GIB, source="limit")])
@pytest.mark.parametrize("count", [None, {"image": 3}])
def test_a_plan_demanded_again_is_the_same_plan(device, count):
    found = plan(SMALL, device, limit_mm_per_prompt=count)
    again = plan(
        SMALL, device, max_model_len=found.max_model_len, max_num_seqs=found.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens,
        gpu_memory_utilization=found.gpu_memory_utilization,
        limit_mm_per_prompt=found.limit_mm_per_prompt,
        mm_processor_kwargs=found.mm_processor_kwargs,
        encoder_cache_tokens=found.encoder_cache_tokens,
    )  # fmt: skip
    assert again.ledger == found.ledger
    flags = [setting.flag for setting in again.settings]
    assert len(flags) == len(set(flags))


@settings(max_examples=40)
@given(st.integers(17_000, 100_000), st.integers(0, 30_000), st.sampled_from([None, 1, 4]))
def test_more_memory_never_gives_a_shorter_context_beside_pictures(mib, more, images):
    limits = None if images is None else {"image": images}
    try:
        small = plan(device=gpu_from_spec("X", mib), limit_mm_per_prompt=limits)
    except DoesNotFitError:
        return
    large = plan(device=gpu_from_spec("X", mib + more), limit_mm_per_prompt=limits)
    assert large.max_model_len >= small.max_model_len


def test_a_refusal_names_the_bound_of_pixels_that_fits_and_no_smaller_one():
    wanted = {"max_model_len": 16_000, "mm_processor_kwargs": {"max_pixels": 2**24}}
    card = gpu_from_spec("NVIDIA-L4")
    with pytest.raises(DoesNotFitError, match=r"Bound pictures to max_pixels \d+") as caught:
        plan(device=card, **wanted)
    way = next(way for way in caught.value.ways if way.kind == "pictures")
    assert plan(device=card, **{**wanted, **way.change})
    kwargs = {"max_pixels": way.change["mm_processor_kwargs"]["max_pixels"] + 1024}
    with pytest.raises(DoesNotFitError):
        plan(device=card, max_model_len=16_000, mm_processor_kwargs=kwargs)


def test_where_no_picture_fits_text_only_is_the_way_out():
    with pytest.raises(DoesNotFitError) as caught:
        plan(SMALL, cpu_device(int(5.5 * GIB), source="limit"), max_model_len=1024)
    way = next(way for way in caught.value.ways if way.kind == "pictures")
    assert "text only" in way.sentence
    assert plan(SMALL, cpu_device(int(5.5 * GIB), source="limit"), max_model_len=1024, **way.change)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"limit_mm_per_prompt": {"audio": 1}}, "image and video, nothing else"),
        ({"limit_mm_per_prompt": {"image": -1}}, "image=-1: must be 0 or more"),
        ({"mm_processor_kwargs": {"max_pixels": "large"}}, "whole number"),
        ({"mm_processor_kwargs": {"max_pixels": 0}}, "at least 1 pixel"),
        ({"mm_processor_kwargs": {"size": 5}}, "must be an object"),
        ({"encoder_cache_tokens": 10}, "the largest picture or video has"),
        (
            {"encoder_cache_tokens": 512, "mm_processor_kwargs": {"max_pixels": 2**20}},
            "the largest picture or video has 1,024 tokens",
        ),
    ],
)
def test_a_demand_that_cannot_be_names_field_and_way_out(wanted, message):
    with pytest.raises(InvalidDemandError, match=message) as caught:
        plan(**wanted)
    assert caught.value.field in wanted


def test_pictures_for_a_model_that_sees_nothing_are_refused():
    for wanted in ({"limit_mm_per_prompt": {"image": 1}}, {"mm_processor_kwargs": {"fps": 1}}):
        with pytest.raises(InvalidDemandError, match="no vision tower"):
            plan("Qwen/Qwen3-0.6B", **wanted)
    assert plan("Qwen/Qwen3-0.6B", limit_mm_per_prompt={"image": 0}).encoder_cache_tokens == 0


def test_vllm_is_told_what_is_demanded_of_pictures():
    found = plan(engine="vllm", max_model_len=8192, limit_mm_per_prompt={"image": 2, "video": 0},
                 mm_processor_kwargs={"max_pixels": 2**20})  # fmt: skip
    assert json.loads(setting(found, "--limit-mm-per-prompt").value) == {"image": 2, "video": 0}
    assert json.loads(setting(found, "--mm-processor-kwargs").value) == {"max_pixels": 2**20}
