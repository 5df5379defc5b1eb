"""vLLM is started with the words that the planner prints, and ours with the 8-bit ones too."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_engine.flags import demands
from qwen_engine.plan_command import run_plan
from qwen_engine.planning import Demands, find_model, gpu_from_spec, make_plan
from qwen_operator.spec import parse_spec
from tests.contract.test_operator_flags import decided, parsed

SAMPLE = Path(__file__).parents[2] / "crds" / "samples" / "qwen3-32b-vllm.yaml"
SPEC: dict[str, Any] = yaml.safe_load(SAMPLE.read_text("utf-8"))["spec"]
# Of the operator's own: where it listens, under which name, how it ends.
_OWN = ("--served-model-name", "--host", "--port", "--shutdown-timeout")
# Options of `vllm serve` in every release from 0.11.0 on (vllm/engine/arg_utils.py).
_KNOWN = {
    "--dtype", "--max-model-len", "--block-size", "--gpu-memory-utilization", "--max-num-seqs",
    "--max-num-batched-tokens", "--enable-prefix-caching", "--no-enable-prefix-caching",
    "--kv-cache-dtype", "--num-gpu-blocks-override", "--tensor-parallel-size", "--enforce-eager",
    "--mm-processor-kwargs", "--limit-mm-per-prompt", "--revision",
}  # fmt: skip


def rendered(spec: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The container's whole command, and the same without the operator's own flags."""
    found = decided(parse_spec(spec)).template["spec"]["containers"][0]
    whole = [*found["command"], *found["args"]]
    planned, words = [], iter(whole)
    for word in words:
        if word in _OWN:
            next(words)
        else:
            planned.append(word)
    return whole, planned


def printed(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> list[str]:
    assert run_plan([*words, "-o", "flags"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_the_sample_is_started_with_the_printed_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = {**SPEC, "gpu": {"product": "NVIDIA-L40S", "count": 4}}
    whole, planned = rendered(spec)
    assert planned == printed(
        capsys,
        [SPEC["model"]["id"], "--engine", "vllm", "--gpu", "NVIDIA-L40S", "--gpu-count", "4",
         "--max-model-len", str(SPEC["context"]["maxModelLen"])],
    )  # fmt: skip
    assert whole[:2] == ["vllm", "serve"]


@pytest.mark.parametrize(
    ("model", "overrides", "wanted"),
    [
        ("Qwen/Qwen3-32B", {"kvCacheDtype": "int8"}, {"kv_cache_dtype": "int8"}),
        ("Qwen/Qwen3-30B-A3B-FP8", {"numGpuBlocksOverride": 2000},
         {"num_gpu_blocks_override": 2000}),
        ("Qwen/Qwen3-VL-32B-Instruct", {"blockSize": 16, "maxNumSeqs": 8},
         {"block_size": 16, "max_num_seqs": 8}),
    ],
)  # fmt: skip
def test_settings_and_their_values_are_the_plans_and_known_to_vllm(
    model: str, overrides: dict[str, Any], wanted: dict[str, Any]
) -> None:
    engine = {"runtime": "VLLM", "overrides": overrides}
    gpu = {"product": "NVIDIA-L40S", "count": 4}
    _, planned = rendered({"model": {"id": model}, "gpu": gpu, "engine": engine})
    device = replace(gpu_from_spec("NVIDIA-L40S"), count=4)
    plan = make_plan(find_model(model), device, Demands(engine="vllm", **wanted))
    assert planned == ["vllm", "serve", model, *plan.args()]
    assert {word for word in planned if word.startswith("--")} <= _KNOWN


@pytest.mark.parametrize(
    ("overrides", "quantization", "kv_cache_dtype"),
    [
        ({"kvCacheDtype": "fp8"}, "none", "fp8"),
        ({"kvCacheDtype": "int8", "quantization": "int8"}, "int8", "int8"),
        ({"kvCacheDtype": "auto", "quantization": "none"}, "none", "auto"),
    ],
)
def test_our_engine_keeps_weights_and_cache_as_was_asked(
    overrides: dict[str, str], quantization: str, kv_cache_dtype: str
) -> None:
    decision = decided(
        parse_spec({"model": {"id": "Qwen/Qwen3-8B"}, "engine": {"overrides": overrides}})
    )
    found = demands(*parsed(decision))
    assert (found.quantization, found.kv_cache_dtype) == (quantization, kv_cache_dtype)
    plain = decided(parse_spec({"model": {"id": "Qwen/Qwen3-8B"}}))
    is_packed = (quantization, kv_cache_dtype) != ("none", "auto")
    more = decision.plan["blocks"]["total"] > 1.5 * plain.plan["blocks"]["total"]
    assert more is is_packed
