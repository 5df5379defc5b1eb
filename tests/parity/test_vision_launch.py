"""A model that sees is launched: the plan's pictures reach the engine, the tower if planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwen_engine.launch import Launched, launch
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands
from qwen_engine.tuning import read_shape
from tests.models.tiny_vision import build_tiny_vision

WANTED = Demands(
    max_model_len=1024, num_gpu_blocks_override=64, gpu_memory_utilization=1.0, max_num_seqs=4
)


def launched(**demands: object) -> Launched:
    options = EngineOptions(
        model=str(build_tiny_vision("2b")),
        device="cpu",
        demands=replace(WANTED, **demands),  # type: ignore[arg-type]
        allowed_media_domains=("example.com",),
    )
    return launch(options, lambda _: None)


def test_the_plans_pictures_reach_the_engine_and_its_lines_are_the_ledgers() -> None:
    found = launched(limit_mm_per_prompt={"image": 2})
    config, planned = found.config, {x.component: x.num_bytes for x in found.plan.ledger}
    assert config.encoder_cache_tokens == found.plan.encoder_cache_tokens > 0
    assert config.limit_mm_per_prompt == {"image": 2, "video": 3}
    assert config.mm_processor_kwargs["max_pixels"] == 256 * 1024
    assert config.allowed_media_domains == ("example.com",)
    measured = found.engine.measured.lines()
    assert measured["vision-tower"] == planned["vision-tower"]
    assert measured["weights"] == planned["weights"]
    assert measured.keys() == planned.keys() - {"unused", "reserve", "swap"}


def test_text_only_is_served_without_the_tower() -> None:
    found = launched(limit_mm_per_prompt={"image": 0, "video": 0})
    assert found.config.encoder_cache_tokens == 0
    assert "vision-tower" not in found.engine.measured.lines()


@pytest.mark.parametrize("layout", ["2b", "8b"])
def test_no_picture_is_planned_above_what_the_checkpoints_processor_takes(layout: str) -> None:
    vision = read_shape(build_tiny_vision(layout)).vision
    assert vision is not None
    assert (vision.image_pixels, vision.largest_image_tokens) == (1_048_576, 1024)
