"""Mixtures of experts: however a checkpoint keeps them, the ids are those of transformers.

How they are scheduled is tried by `test_greedy_tiny` and `test_vision_greedy`.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwen_engine.errors import CheckpointError
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers import int8
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.models import experts
from qwen_engine.planning import Demands
from qwen_engine.planning.weights import weight_bytes
from qwen_engine.tuning import read_shape
from tests.models.fp8 import build_fp8_twin, build_tiny_fp8
from tests.models.tiny import build_tiny
from tests.models.tiny_vision import build_tiny_vision
from tests.parity.greedy import (
    Prompt,
    assert_same_ids,
    engine_config,
    load_oracle,
    make_prompts,
    run_engine,
)

_OF_AN_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight(_scale_inv)?")
_LENGTHS = [1, 17, 40, 100]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def prompts_of(folder: Path) -> list[Prompt]:
    return make_prompts(folder, _LENGTHS, shared=16)


def stack(source: Path, folder: Path, *, is_transposed: bool) -> Path:
    """Write a checkpoint with all experts of a layer in two tensors, as Qwen3-VL's have them."""
    shutil.copytree(source, folder)
    found: defaultdict[tuple[str, str, str], dict[int, torch.Tensor]] = defaultdict(dict)
    kept = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if match := _OF_AN_EXPERT.fullmatch(name):
            layer, expert, kind, suffix = match.groups()
            found[layer, kind, suffix or ""][int(expert)] = tensor
        else:
            kept[name] = tensor
    for (layer, kind, suffix), each in found.items():
        if kind == "up":
            continue
        rows = [each[index] for index in range(len(each))]
        if kind == "gate":
            ups = found[layer, "up", suffix]
            rows = [torch.cat([gate, ups[index]]) for index, gate in enumerate(rows)]
        name = "gate_up_proj" if kind == "gate" else "down_proj"
        stacked = torch.stack([x.T if is_transposed else x for x in rows])
        kept[f"{layer}.{name}{suffix}"] = stacked.contiguous()
    save_file(kept, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("is_transposed", [True, False])
@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-some"])
def test_experts_may_lie_in_one_tensor(tmp_path: Path, name: str, is_transposed: bool) -> None:
    source = build_tiny(name)
    folder = stack(source, tmp_path / "model", is_transposed=is_transposed)
    answers, _ = run_engine(engine_config(folder), prompts_of(source))
    assert_same_ids(source, prompts_of(source), answers)


def test_a_stack_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = stack(build_tiny("qwen3-moe"), tmp_path / "model", is_transposed=True)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"down_proj has shape \[16, 47, 64\]"):
        LLMEngine.from_config(engine_config(folder))


def test_tokens_of_several_tiles_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "EXPERT_TILE_TOKENS", 7)
    folder = build_tiny("qwen3-moe")
    answers, _ = run_engine(engine_config(folder), prompts_of(folder))
    assert_same_ids(folder, prompts_of(folder), answers)


@pytest.mark.parametrize("layout", ["one by one", "stacked", "stacked and transposed"])
def test_fp8_experts_say_what_the_widened_ones_say(tmp_path: Path, layout: str) -> None:
    folder, twin = build_tiny_fp8("qwen3-moe"), build_fp8_twin("qwen3-moe")
    if layout != "one by one":
        is_transposed = layout.endswith("transposed")
        folder = stack(folder, tmp_path / "model", is_transposed=is_transposed)
    answers, _ = run_engine(engine_config(folder), prompts_of(twin))
    assert_same_ids(twin, prompts_of(twin), answers)
    made = [
        run_engine(engine_config(each, quantization="int8"), prompts_of(twin))[0]
        for each in (folder, twin)
    ]
    assert made[0] == made[1]


def test_int8_experts_say_what_the_rounded_ones_say(tmp_path: Path) -> None:
    source, rounded = build_tiny("qwen3-moe"), tmp_path / "model"
    shutil.copytree(source, rounded)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and not re.search(r"embed_tokens|mlp\.gate\.", name):
            rows = tensor.new_empty(int8.stored_shape(*tensor.shape), dtype=torch.int8)
            int8.Int8Rows(rows).copy_(tensor)
            values, scales = int8.split(rows)
            tensors[name] = values * scales
    save_file(tensors, rounded / "model.safetensors", metadata={"format": "pt"})
    answers, _ = run_engine(engine_config(source, quantization="int8"), prompts_of(source))
    assert_same_ids(rounded, prompts_of(source), answers)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-some", "30b-a3b", "fp8"])
def test_the_planner_counts_what_is_resident(name: str, quantization: str) -> None:
    if name == "fp8":
        folder = build_tiny_fp8("qwen3-moe")
    else:
        folder = (build_tiny_vision if name == "30b-a3b" else build_tiny)(name)
    config = engine_config(folder, dtype="bfloat16", quantization=quantization)
    model = Demands(quantization=quantization).serve(read_shape(folder))
    measured = LLMEngine.from_config(config).measured.weights_bytes
    assert measured == weight_bytes(model, "bfloat16")


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("has_library", [True, False], ids=["as built", "torch alone"])
def test_in_bfloat16_the_logits_are_near_those_of_float32(
    quantization: str, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighed by transformers: by how much was the likeliest id likelier than the chosen one?"""
    if not has_library:
        monkeypatch.setattr(NativeLibrary, "find", lambda: None)
    folder = build_fp8_twin("qwen3-moe")  # of sizes that can be packed
    prompts = prompts_of(folder)
    config = engine_config(folder, dtype="bfloat16", quantization=quantization)
    answers, _ = run_engine(config, prompts, num_tokens=16)
    regrets = []
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            logits = load_oracle(folder)(torch.tensor([[*prompt, *answer]])).logits[0]
        said = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
        chosen = said.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        regrets.append(said.amax(dim=-1) - chosen)
    assert torch.cat(regrets).mean() < 0.05
