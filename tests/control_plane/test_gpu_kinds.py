"""Twelve kinds of GPU in one cluster, a QwenDeployment each: the right plan, within a second."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from qwen_operator.node_facts import parse_node
from qwen_operator.spec import parse_spec
from qwen_operator.spec_plan import plan_spec
from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import SECONDS, Qwen

Json = dict[str, Any]
GPU, SLICE, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
A100 = "NVIDIA-A100-SXM4-80GB"
LONGEST_SECONDS = 1.0  # from apply to Planned, p95


def labels(product: str, mib: int, capability: str, **more: str) -> dict[str, str]:
    """What gpu-feature-discovery writes about one GPU."""
    major, minor = capability.split(".")
    found = {"product": product, "memory": str(mib), "compute.major": major, "compute.minor": minor}
    return {f"nvidia.com/gpu.{k}": v for k, v in found.items()} | {
        f"nvidia.com/{k.replace('_', '.')}": v for k, v in more.items()
    }


# name: labels, allocatable, spec.gpu, (product, MiB of one unit, data type)
KINDS: dict[str, tuple[dict[str, str], dict[str, str], Json, tuple[str, int, str]]] = {
    "v100": (
        labels("Tesla-V100-SXM2-32GB", 32768, "7.0"), {GPU: "8"},
        {"product": "Tesla-V100-SXM2-32GB"}, ("Tesla-V100-SXM2-32GB", 32768, "float16"),
    ),
    "t4": (
        labels("Tesla-T4", 15360, "7.5"), {GPU: "1"},
        {"product": "Tesla-T4"}, ("Tesla-T4", 15360, "float16"),
    ),
    "rtx-3060": (
        labels("NVIDIA-GeForce-RTX-3060", 12288, "8.6"), {GPU: "1"},
        {"product": "NVIDIA-GeForce-RTX-3060"}, ("NVIDIA-GeForce-RTX-3060", 12288, "bfloat16"),
    ),
    "rtx-4090": (
        labels("NVIDIA-GeForce-RTX-4090", 24564, "8.9"), {GPU: "2"},
        {"product": "NVIDIA-GeForce-RTX-4090"}, ("NVIDIA-GeForce-RTX-4090", 24564, "bfloat16"),
    ),
    "a10": (  # named by its nominal size
        labels("NVIDIA-A10", 22731, "8.6"), {GPU: "1"},
        {"product": "NVIDIA-A10", "memoryMiB": 24576}, ("NVIDIA-A10", 22731, "bfloat16"),
    ),
    "l4": (  # nothing but a cloud's label
        {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {GPU: "1"},
        {"product": "NVIDIA-L4"}, ("NVIDIA-L4", 23034, "bfloat16"),
    ),
    "l40s-shared": (
        labels("NVIDIA-L40S-SHARED", 46068, "8.9", gpu_count="1", gpu_replicas="4"), {GPU: "4"},
        {"product": "NVIDIA-L40S"}, ("NVIDIA-L40S", 11517, "bfloat16"),
    ),
    "a100-bytes": (  # an old release
        labels("A100-SXM4-40GB", 42505273344, "8.0"), {GPU: "8"},
        {"product": "A100-SXM4-40GB"}, ("A100-SXM4-40GB", 40536, "bfloat16"),
    ),
    "a100-mig": (
        labels(A100, 81920, "8.0", **{"mig-1g_10gb_memory": "9728"}), {SLICE: "7"},
        {"resourceName": SLICE}, (f"{A100}-MIG-1g.10gb", 9728, "bfloat16"),
    ),
    "h100-renamed": (
        labels("NVIDIA-H100-80GB-HBM3", 81559, "9.0", gpu_count="2", gpu_replicas="1"),
        {SHARED: "10"},
        {"resourceName": SHARED}, ("NVIDIA-H100-80GB-HBM3", 16311, "bfloat16"),
    ),
    "h200": (
        labels("NVIDIA-H200", 143771, "9.0"), {GPU: "8"},
        {"product": "NVIDIA-H200"}, ("NVIDIA-H200", 143771, "bfloat16"),
    ),
    "unheard-of": (
        labels("NVIDIA-Z9", 300000, "13.0"), {GPU: "4"},
        {"product": "NVIDIA-Z9"}, ("NVIDIA-Z9", 300000, "bfloat16"),
    ),
}  # fmt: skip


@pytest.fixture
def fleet(kwok_nodes: NodeFactory) -> None:
    """A node of each kind."""
    for name, (node_labels, allocatable, _, _) in KINDS.items():
        kwok_nodes(name, labels=node_labels, allocatable=allocatable, ready=False)


def spec_of(gpu: Json) -> Json:
    return {"model": {"id": "Qwen/Qwen3-1.7B"}, "gpu": gpu}


def seconds_until_planned(qwen: Qwen, name: str, gpu: Json) -> float:
    start = time.monotonic()
    qwen.create(name, **spec_of(gpu))
    until(
        lambda: qwen.condition(name, "Planned"),
        what=f"{name} judged",
        within_seconds=SECONDS,
        every_seconds=0.01,
    )
    return time.monotonic() - start


def test_each_of_twelve_kinds_is_planned_as_it_is_and_within_a_second(
    qwen: Qwen, operator: OperatorProcess, fleet: None
) -> None:
    times = sorted(seconds_until_planned(qwen, name, kind[2]) for name, kind in KINDS.items())
    nodes = [parse_node(node) for node in qwen.cluster.get("nodes")["items"]]
    for name, (_, _, gpu, (product, mib, dtype)) in KINDS.items():
        condition = qwen.condition(name, "Planned")
        assert condition["reason"] == "PlanFits", condition["message"]
        plan = qwen.status(name)["plan"]
        device = plan["device"]
        assert (device["product"], device["memoryMiB"]) == (product, mib)
        assert plan["model"]["dtype"] == dtype
        assert sum(line["bytes"] for line in plan["ledger"]) >> 20 == mib
        assert plan == plan_spec(parse_spec(spec_of(gpu)), nodes).plan
    assert times[math.ceil(0.95 * len(times)) - 1] <= LONGEST_SECONDS, times


def test_without_a_wish_the_smallest_whole_card_that_fits_is_taken(
    qwen: Qwen, operator: OperatorProcess, fleet: None
) -> None:
    qwen.apply("any", **spec_of({}))
    qwen.wait_for("any", "Planned", "PlanFits")
    plan = qwen.status("any")["plan"]
    assert plan["device"]["product"] == "NVIDIA-GeForce-RTX-3060"
    assert len(plan["pools"]) == 10, "all that offer nvidia.com/gpu"
    assert [p["memoryMiB"] for p in plan["pools"][:3]] == [12288, 15360, 22731]
