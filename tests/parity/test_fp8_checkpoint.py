"""An FP8 checkpoint says what the model of its widened weights says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwen_engine.errors import CheckpointError
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.planning import Demands
from qwen_engine.planning.weights import weight_bytes
from qwen_engine.tuning import read_shape
from tests.models.fp8 import build_fp8_twin, build_tiny_fp8
from tests.parity.greedy import assert_same_ids, engine_config, make_prompts, run_engine

SCALES = "model.layers.1.mlp.down_proj.weight_scale_inv"


def test_the_ids_are_those_of_transformers_with_the_widened_weights() -> None:
    prompts = make_prompts(build_fp8_twin(), [1, 17, 40, 100], shared=16)
    answers, _ = run_engine(engine_config(build_tiny_fp8()), prompts)
    assert_same_ids(build_fp8_twin(), prompts, answers)


def test_made_int8_it_says_what_the_twin_made_int8_says() -> None:
    prompts = make_prompts(build_fp8_twin(), [1, 17, 40], shared=16)
    answers = [
        run_engine(engine_config(folder, quantization="int8"), prompts)[0]
        for folder in (build_tiny_fp8(), build_fp8_twin())
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_planner_counts_what_is_resident(quantization: str) -> None:
    folder = build_tiny_fp8()
    engine = LLMEngine.from_config(
        engine_config(folder, dtype="bfloat16", quantization=quantization)
    )
    model = Demands(quantization=quantization).serve(read_shape(folder))
    assert engine.measured.weights_bytes == weight_bytes(model, "bfloat16")


def damaged(tmp_path: Path, change: dict[str, torch.Tensor | None]) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(build_tiny_fp8(), folder)
    tensors = {**load_file(folder / "model.safetensors"), **change}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({SCALES: None}, "down_proj.weight has dtype F8_E4M3 and no .*_scale_inv beside it"),
        ({SCALES: torch.ones(1, 1)}, r"scales \[1, 1\]: blocks of 128 × 128 have \[2, 3\]"),
        ({SCALES: torch.ones(2, 3, dtype=torch.int32)}, "scales are floats"),
        ({"x.weight_scale_inv": torch.ones(1)}, "scales of x.weight, but no such tensors"),
        ({"model.norm.weight_scale_inv": torch.ones(1)}, "F32 and a .*_scale_inv beside it"),
    ],
)
def test_scales_that_do_not_belong_are_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        LLMEngine.from_config(engine_config(damaged(tmp_path, change)))


def test_scales_may_lie_in_another_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(build_tiny_fp8(), folder)
    tensors = load_file(folder / "model.safetensors")
    parts = (
        {n: t for n, t in tensors.items() if n.endswith("_inv") is late} for late in (False, True)
    )
    index = {}
    for number, part in enumerate(parts):
        save_file(part, folder / f"part-{number}.safetensors")
        index |= dict.fromkeys(part, f"part-{number}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    prompts = make_prompts(build_fp8_twin(), [17], shared=0)
    answers, _ = run_engine(engine_config(folder), prompts)
    assert_same_ids(build_fp8_twin(), prompts, answers)
