"""reconcile: the device that is planned for, and what the plan is made of."""

from __future__ import annotations

import dataclasses

import pytest

from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome
from tests.unit.operator_states import (
    condition,
    flag,
    gpu_spec,
    h100,
    l4,
    look,
    resource,
    rolled_out,
    settle,
    template_of,
    with_memory,
)


def test_the_gpu_is_found_from_labels_and_pods_are_led_to_it() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(),)))
    device = outcome.status["plan"]["device"]
    assert (device["product"], device["memoryMiB"], device["capability"]) == (
        "NVIDIA-L4",
        23034,
        "8.9",
    )
    assert "l4-0" in device["source"]
    pod = template_of(outcome)["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_of_several_kinds_the_smallest_that_fits_is_taken_and_the_user_is_told() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(), h100(), l4("l4-1"))))
    assert outcome.status["plan"]["device"]["product"] == "NVIDIA-L4"
    message = condition(outcome, "Planned")[2]
    assert "spec.gpu.product chooses another: NVIDIA-H100-80GB-HBM3" in message
    assert "the smallest that the model fits on" in message


def test_spec_gpu_product_chooses_among_nodes() -> None:
    about = resource(gpu_spec(gpu={"product": "NVIDIA-L4"}))
    outcome = look(about, Observed(nodes=(h100(), l4())))
    assert outcome.status["plan"]["device"]["product"] == "NVIDIA-L4"
    assert template_of(outcome)["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_spec_gpu_memory_wins_over_labels() -> None:
    about = resource(gpu_spec(gpu={"product": "NVIDIA-L4", "memoryMiB": 20000}))
    outcome = look(about, Observed(nodes=(l4(),)))
    assert outcome.status["plan"]["device"]["memoryMiB"] == 20000
    assert outcome.status["plan"]["device"]["source"] == "spec.gpu.memoryMiB"
    assert template_of(outcome)["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_a_product_that_no_node_has_yet_is_planned_from_the_catalogue() -> None:
    outcome = look(resource(gpu_spec(gpu={"product": "NVIDIA-L4"})))
    assert "catalogue" in outcome.status["plan"]["device"]["source"]
    assert "nodeSelector" not in template_of(outcome)["spec"]


def test_a_node_without_the_memory_label_is_named_with_the_label() -> None:
    bare = dataclasses.replace(l4("bare"), labels={"nvidia.com/gpu.product": "NVIDIA-Z9"})
    message = condition(look(resource(gpu_spec()), Observed(nodes=(bare,))), "Planned")[2]
    assert "node bare" in message
    assert "nvidia.com/gpu.memory" in message
    assert "spec.gpu.memoryMiB" in message


def test_labels_without_allocatable_gpus_do_not_count() -> None:
    idle = dataclasses.replace(l4(), allocatable={"nvidia.com/gpu": 0})
    outcome = look(resource(gpu_spec()), Observed(nodes=(idle,)))
    assert condition(outcome, "Planned")[1] == "UnknownGPU"


def test_pods_that_serve_keep_their_plan_when_labels_vanish_or_better_nodes_come() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(l4(),)))
    serving = rolled_out(observed, ready=1)
    for nodes in ((), (h100(),), (l4(), h100())):
        assert look(about, dataclasses.replace(serving, nodes=nodes)).apply == ()


def test_pods_that_wait_in_vain_are_planned_anew_for_nodes_that_are_there() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(l4(),)))
    waiting = rolled_out(observed, ready=0, replicas=1)
    outcome = look(about, dataclasses.replace(waiting, nodes=(h100(),)))
    assert template_of(outcome)["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"
    }


def test_without_a_memory_limit_a_cpu_deployment_gets_one_that_is_explained() -> None:
    about = resource({"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}})
    outcome = look(about)
    limit = template_of(outcome)["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert outcome.status["plan"]["device"]["memoryMiB"] == int(limit[:-2]) * 1024
    assert "chosen by the operator" in condition(outcome, "Planned")[2]


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("8Gi", 8192), ("8G", 7629), ("8192Mi", 8192), ("8e9", 7629), ("8589934592000m", 8192)],
)
def test_memory_limits_are_read_with_the_whole_quantity_grammar(limit: str, mib: int) -> None:
    """K8-047."""
    spec = {
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "gpu": {"count": 0},
        "engine": {"resources": {"limits": {"memory": limit}}},
    }
    outcome = look(resource(spec))
    assert outcome.status["plan"]["device"]["memoryMiB"] == mib
    resources = template_of(outcome)["spec"]["containers"][0]["resources"]
    assert resources["limits"]["memory"] == limit  # as the user wrote it


def test_overrides_are_planned_around() -> None:
    spec = {
        "model": {"id": "Qwen/Qwen3-8B"},
        "gpu": {"product": "NVIDIA-L4"},
        "context": {"maxModelLen": 4096},
        "engine": {
            "overrides": {
                "blockSize": 64,
                "gpuMemoryUtilization": 0.8,
                "maxNumSeqs": 3,
                "maxNumBatchedTokens": 512,
                "numGpuBlocksOverride": 100,
            }
        },
    }
    outcome = look(resource(spec))
    asked = {
        "--max-model-len": "4096",
        "--block-size": "64",
        "--gpu-memory-utilization": "0.8",
        "--max-num-seqs": "3",
        "--max-num-batched-tokens": "512",
        "--num-gpu-blocks-override": "100",
    }
    assert {name: flag(outcome, name) for name in asked} == asked


def test_a_model_that_the_catalogue_lacks_is_planned_from_its_config() -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    spec = {"model": {"id": "me/tiny", "config": config, "uri": "pvc://models/tiny"}}
    outcome = look(resource({**spec, "gpu": {"count": 0}}))
    assert condition(outcome, "Planned")[1] == "PlanFits"
    assert flag(outcome, "--max-model-len") == "512"


def memory_request(outcome: Outcome) -> str:
    found: str = template_of(outcome)["spec"]["containers"][0]["resources"]["requests"]["memory"]
    return found


def test_swap_space_is_planned_within_each_gpus_share_of_its_node_and_requested() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(with_memory(h100(), 1024),)))
    assert flag(outcome, "--swap-space") == "16"
    assert memory_request(outcome) == "20Gi"
    outcome = look(resource(gpu_spec()), Observed(nodes=(with_memory(h100(), 256),)))
    assert flag(outcome, "--swap-space") == "8", "a quarter of the eighth part of 256 GiB"
    assert memory_request(outcome) == "12Gi"


def test_of_several_nodes_the_poorest_bounds_the_swap_space() -> None:
    nodes = (with_memory(l4("a"), 64), with_memory(l4("b"), 8), with_memory(h100(), 8))
    about = resource(gpu_spec(gpu={"product": "NVIDIA-L4"}))
    outcome = look(about, Observed(nodes=nodes))
    assert flag(outcome, "--swap-space") == "2"


def test_where_no_node_says_its_memory_there_is_no_swap_space() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(),)))
    assert flag(outcome, "--swap-space") == "0"
    assert memory_request(outcome) == "4Gi"


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_memory_that_the_user_set_bounds_the_swap_space(kind: str) -> None:
    about = resource(gpu_spec(engine={"resources": {kind: {"memory": "8Gi"}}}))
    outcome = look(about, Observed(nodes=(with_memory(l4(), 64),)))
    assert flag(outcome, "--swap-space") == "2"
    assert memory_request(outcome) == "8Gi"


def test_a_demanded_swap_space_is_taken_and_requested() -> None:
    about = resource(gpu_spec(engine={"overrides": {"swapSpaceGiB": 6.5}}))
    outcome = look(about, Observed(nodes=(with_memory(l4(), 64),)))
    assert flag(outcome, "--swap-space") == "6.5"
    assert memory_request(outcome) == "11Gi"


def test_a_demanded_swap_space_beyond_the_pods_memory_is_refused_by_its_field() -> None:
    engine = {"overrides": {"swapSpaceGiB": 8}, "resources": {"limits": {"memory": "8Gi"}}}
    outcome = look(resource(gpu_spec(engine=engine)), Observed(nodes=(l4(),)))
    status, _, message = condition(outcome, "Planned")
    assert status == "False"
    assert "spec.engine.overrides.swapSpaceGiB" in message
    assert "8.00 GiB" in message


def test_on_a_cpu_a_demanded_swap_space_is_part_of_the_chosen_memory() -> None:
    def memory(**engine: object) -> int:
        spec = {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}, "engine": engine}
        outcome = look(resource(spec), Observed())
        return int(memory_request(outcome).removesuffix("Gi"))

    assert memory(overrides={"swapSpaceGiB": 4}) >= memory() + 4
