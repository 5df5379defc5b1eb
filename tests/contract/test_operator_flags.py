"""The engine understands every command line that the operator renders, and means the same by it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_engine import cli
from qwen_engine.flags import demands, engine_options
from qwen_engine.planning import Demands, cpu_device, find_model, make_plan
from qwen_engine.server import info_routes
from qwen_operator.decision import Decision, decide
from qwen_operator.node_facts import NodeFacts
from qwen_operator.pod_template import build_pod_template
from qwen_operator.scrape import parse_stats
from qwen_operator.spec import QwenDeploymentSpec, parse_spec

SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))
L4 = NodeFacts(
    "l4-0",
    {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"},
    {"nvidia.com/gpu": 1},
)


def samples() -> list[tuple[Path, dict[str, Any]]]:
    """The specs of the samples; those for vLLM are test_operator_vllm's."""
    return [(path, yaml.safe_load(path.read_text("utf-8"))["spec"]) for path in SAMPLES]


CPU: dict[str, Any] = {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}}
SPECS: dict[str, dict[str, Any]] = {
    **{path.stem: spec for path, spec in samples() if "runtime" not in spec.get("engine", {})},
    "overrides": {
        "model": {"id": "Qwen/Qwen3-8B", "revision": "main"},
        "context": {"maxModelLen": 2048},
        "engine": {
            "overrides": {
                "blockSize": 64,
                "gpuMemoryUtilization": 0.85,
                "maxNumSeqs": 3,
                "maxNumBatchedTokens": 512,
                "dtype": "float16",
                "numGpuBlocksOverride": 100,
                "swapSpaceGiB": 2.5,
            },
            "extraArgs": ["--seed", "7", "--no-enable-prefix-caching", "--max-queue=5"],
        },
    },
    "float32": {**CPU, "engine": {"overrides": {"dtype": "float32"}}},
}


def decided(spec: QwenDeploymentSpec) -> Decision:
    found = decide(
        spec,
        (L4,),
        None,
        image="engine:1",
        build_template=lambda planned: build_pod_template("x", spec, planned, image="engine:1"),
    )
    assert isinstance(found, Decision), found
    return found


def parsed(decision: Decision) -> tuple[Any, argparse.Namespace]:
    """Parse the container's arguments as the engine does."""
    command, *words = decision.template["spec"]["containers"][0]["args"]
    assert command == "serve"
    parser = cli._serve_parser()
    return parser, parser.parse_or_exit(words)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_engine_plans_again_what_the_operator_planned(name: str) -> None:
    spec = parse_spec(SPECS[name])
    decision = decided(spec)
    parser, arguments = parsed(decision)
    wanted, plan = demands(parser, arguments), decision.plan
    assert wanted.max_model_len == plan["maxModelLen"]
    assert wanted.block_size == plan["blocks"]["size"]
    assert wanted.dtype == plan["model"]["dtype"]
    planned = {setting["flag"]: setting["value"] for setting in plan["settings"]}
    assert wanted.swap_space == float(planned["--swap-space"])
    assert str(wanted.max_num_seqs) == planned["--max-num-seqs"]
    assert str(wanted.max_num_batched_tokens) == planned["--max-num-batched-tokens"]
    assert wanted.gpu_memory_utilization == float(planned["--gpu-memory-utilization"])


@pytest.mark.parametrize("name", sorted(SPECS))
def test_model_name_device_and_address_arrive(name: str) -> None:
    spec = parse_spec(SPECS[name])
    parser, arguments = parsed(decided(spec))
    options = engine_options(parser, arguments)
    settings = cli._server_settings(parser, arguments)
    assert options.served_model_names == (spec.model.id,)
    assert options.device == ("cpu" if spec.gpu.count == 0 else "auto")
    assert options.source.revision == spec.model.revision
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    folder = {"hf": spec.model.source.place, "pvc": f"/models/{spec.model.source.folder}"}
    assert options.model == folder[spec.model.source.scheme]


def test_the_engine_drains_within_the_pods_grace_period() -> None:
    decision = decided(parse_spec(CPU))
    parser, arguments = parsed(decision)
    pod = decision.template["spec"]
    unrouting = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = cli._server_settings(parser, arguments).shutdown_timeout_seconds
    assert unrouting + drain < pod["terminationGracePeriodSeconds"]


def test_extra_arguments_win_and_reach_the_engine() -> None:
    parser, arguments = parsed(decided(parse_spec(SPECS["overrides"])))
    assert engine_options(parser, arguments).seed == 7
    assert demands(parser, arguments).enable_prefix_caching is False
    assert cli._server_settings(parser, arguments).max_queue == 5


def test_a_cpu_engine_given_the_limit_and_the_flags_finds_the_same_blocks() -> None:
    spec = parse_spec({**CPU, "engine": {"resources": {"limits": {"memory": "6Gi"}}}})
    decision = decided(spec)
    parser, arguments = parsed(decision)
    again = make_plan(
        find_model(spec.model.id),
        cpu_device(6 * 2**30, source="cgroup"),
        demands(parser, arguments),
    )
    assert isinstance(demands(parser, arguments), Demands)
    assert again.num_blocks == decision.plan["blocks"]["total"]


def test_probes_go_to_paths_that_the_server_has() -> None:
    container = decided(parse_spec(CPU)).template["spec"]["containers"][0]
    paths = {
        container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {"/ready", "/health"}
    assert callable(info_routes.get_ready)
    assert callable(info_routes.get_health)


def test_block_counts_have_the_names_that_stats_uses() -> None:
    body = {f"num_{kind}_gpu_blocks": 1 for kind in info_routes._BLOCKS}
    reading = parse_stats(body)
    assert reading is not None
    assert reading.blocks == {"total": 1, "free": 1, "used": 1, "cached": 1}
