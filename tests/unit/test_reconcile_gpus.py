"""reconcile: labels, GPUs, MIG and memory as reported from the field. State in, plan out.

The ids are those of the reports from which the states are made (K8-…: cases/k8s-reports.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qwen_operator.node_facts import NodeFacts
from qwen_operator.observed import Observed
from tests.unit.operator_states import condition, look, resource, template_of

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
SMALL = {"model": {"id": "Qwen/Qwen3-0.6B"}}
A100 = "NVIDIA-A100-SXM4-80GB"


def node(
    name: str = "gpu-0", offers: Mapping[str, int] | None = None, **labels: str | int
) -> NodeFacts:
    """A node; label names are given behind nvidia.com/, with __ for a dot and _ for a dash."""
    spelled = {k.replace("__", ".").replace("_", "-"): str(v) for k, v in labels.items()}
    return NodeFacts(
        name,
        {f"nvidia.com/{key}": value for key, value in spelled.items()},
        {GPU: 1} if offers is None else dict(offers),
    )


INSTANCE, GKE = "node.kubernetes.io/instance-type", "cloud.google.com/gke-accelerator"

# id, spec.gpu, nodes, (product, MiB, words of the source)
PLANNED: list[tuple[str, dict[str, Any], list[NodeFacts], tuple[str, int, str]]] = [
    (
        "K8-001: the memory label is of one GPU, however many there are",
        {},
        [node(offers={GPU: 4}, gpu__product="X-1", gpu__memory=24576, gpu__count=4)],
        ("X-1", 24576, "nvidia.com/gpu.memory of node gpu-0"),
    ),
    (
        "K8-003: an old release wrote bytes",
        {},
        [node(gpu__product="A100-SXM4-40GB", gpu__memory=42505273344, gpu__count=1)],
        ("A100-SXM4-40GB", 40536, "nvidia.com/gpu.memory"),
    ),
    (
        "K8-005: a node with an invalid MIG layout does not stand in the way of others",
        {},
        [
            node("bad-0", gpu__product=f"{A100}-MIG-INVALID", gpu__memory=0),
            node("good-0", gpu__product="NVIDIA-L4", gpu__memory=23034),
        ],
        ("NVIDIA-L4", 23034, "node good-0"),
    ),
    (
        "K8-007: MIG slices without labels are read from what the node offers",
        {"resourceName": "nvidia.com/mig-1g.34gb"},
        [node(offers={"nvidia.com/mig-1g.34gb": 7}, gpu__product="NVIDIA-B300", mig__strategy="x")],
        ("NVIDIA-B300-MIG-1g.34gb", 30803, "label nvidia.com/mig-1g.34gb.memory is missing"),
    ),
    (
        "a MIG slice's own label wins over its name",
        {"resourceName": SLICE},
        [node(offers={SLICE: 7}, gpu__product=A100, gpu__memory=81920, mig_1g__10gb__memory=9728)],
        (f"{A100}-MIG-1g.10gb", 9728, "nvidia.com/mig-1g.10gb.memory of node gpu-0"),
    ),
    (
        "under MIG's single strategy the labels are a slice's",
        {},
        [node(offers={GPU: 7}, gpu__product=f"{A100}-MIG-1g.10gb", gpu__memory=9728, gpu__count=7)],
        (f"{A100}-MIG-1g.10gb", 9728, "nvidia.com/gpu.memory"),
    ),
    (
        "without its memory label such a slice is never taken for the whole card",
        {},
        [node(offers={GPU: 7}, gpu__product=f"{A100}-MIG-1g.10gb", gpu__count=7)],
        (f"{A100}-MIG-1g.10gb", 9059, "the profile's name"),
    ),
    (
        "K8-061: shares are counted by what the node offers where the label says 1",
        {"resourceName": SHARED},
        [
            node(
                offers={SHARED: 20},
                gpu__product=A100,
                gpu__memory=81920,
                gpu__count=2,
                gpu__replicas=1,
            )
        ],
        (A100, 8192, "one of 10 shares"),
    ),
    (
        "a time-sliced card under its ordinary name is divided too",
        {},
        [
            node(
                offers={GPU: 4},
                gpu__product=f"{A100}-SHARED",
                gpu__memory=81920,
                gpu__count=1,
                gpu__replicas=4,
            )
        ],
        (A100, 20480, "one of 4 shares"),
    ),
    (
        "K8-063: a nominal size finds the card, and the reported size is planned",
        {"memoryMiB": 24576},
        [node(gpu__product="NVIDIA-A10", gpu__memory=22731, gpu__count=1)],
        ("NVIDIA-A10", 22731, "nvidia.com/gpu.memory"),
    ),
    (
        "a card with fewer healthy GPUs than its count label is still whole",
        {},
        [node(offers={GPU: 3}, gpu__product="NVIDIA-L4", gpu__memory=23034, gpu__count=4)],
        ("NVIDIA-L4", 23034, "nvidia.com/gpu.memory"),
    ),
    (
        "a virtual GPU's memory label is its own",
        {},
        [node(gpu__product="NVIDIA-A10-8Q", gpu__memory=8192, vgpu__present="true")],
        ("NVIDIA-A10-8Q", 8192, "nvidia.com/gpu.memory"),
    ),
    (
        "a virtual GPU without memory label has what its profile says, not the card's",
        {},
        [node(gpu__product="NVIDIA-A10-8Q", vgpu__present="true")],
        ("NVIDIA-A10-8Q", 7247, "the vGPU profile's name"),
    ),
    (
        "without NVIDIA's labels the cloud's accelerator label tells",
        {},
        [NodeFacts("gke-0", {GKE: "nvidia-l4"}, {GPU: 1})],
        ("NVIDIA-L4", 23034, "cloud.google.com/gke-accelerator=nvidia-l4"),
    ),
    (
        "or the instance type",
        {},
        [NodeFacts("eks-0", {INSTANCE: "g5.2xlarge"}, {GPU: 1})],
        ("NVIDIA-A10G", 23028, "node.kubernetes.io/instance-type=g5.2xlarge"),
    ),
    (
        "of nodes with one product the poorest counts, for pods may land there",
        {},
        [
            node("a", gpu__product="X-1", gpu__memory=24576),
            node("b", gpu__product="X-1", gpu__memory=22528),
        ],
        ("X-1", 22528, "node b"),
    ),
    (
        "whole cards come before shared ones, though a share is smaller",
        {},
        [
            node("whole", gpu__product="NVIDIA-L40S", gpu__memory=46068),
            node(
                "shared",
                offers={GPU: 2},
                gpu__product="NVIDIA-L4-SHARED",
                gpu__memory=23034,
                gpu__count=1,
                gpu__replicas=2,
            ),
        ],
        ("NVIDIA-L40S", 46068, "node whole"),
    ),
]


@pytest.mark.parametrize(
    ("gpu", "nodes", "device"), [c[1:] for c in PLANNED], ids=[c[0] for c in PLANNED]
)
def test_the_device_is_what_one_pod_really_gets(
    gpu: dict[str, Any], nodes: list[NodeFacts], device: tuple[str, int, str]
) -> None:
    outcome = look(resource({**SMALL, "gpu": gpu}), Observed(nodes=tuple(nodes)))
    assert condition(outcome, "Planned")[1] == "PlanFits", condition(outcome, "Planned")[2]
    found = outcome.status["plan"]["device"]
    assert (found["product"], found["memoryMiB"]) == device[:2]
    assert device[2] in found["source"]


# id, spec.gpu, nodes, words of the message
REFUSED: list[tuple[str, dict[str, Any], list[NodeFacts], list[str]]] = [
    (
        "K8-005: an invalid MIG layout alone",
        {},
        [node(gpu__product=f"{A100}-MIG-INVALID", gpu__memory=0)],
        ["node gpu-0", "MIG layout is not uniform"],
    ),
    (
        "K8-049: a node with two products, of which labels describe one",
        {},
        [node(offers={GPU: 4}, gpu__product="X-1", gpu__memory=24576, gpu__count=2)],
        ["node gpu-0 is mixed", "offers 4 nvidia.com/gpu", "only 2", "spec.gpu.memoryMiB"],
    ),
    (
        "K8-061: shares among nobody knows how many",
        {"resourceName": SHARED},
        [node(offers={SHARED: 50}, gpu__product=A100, gpu__memory=81920, gpu__replicas=1)],
        ["node gpu-0", "nvidia.com/gpu.replicas=1", "spec.gpu.memoryMiB"],
    ),
    (
        "MIG slices are offered, but whole GPUs asked for",
        {},
        [node(offers={SLICE: 7, GPU: 0}, gpu__product=A100, gpu__memory=81920)],
        ["nvidia.com/mig-1g.10gb (7 on gpu-0)", "spec.gpu.resourceName"],
    ),
    (
        "labels without a device plugin",
        {},
        [node(offers={}, gpu__product="NVIDIA-L4", gpu__memory=23034, gpu__count=1)],
        ["node gpu-0 is labelled", "offers no nvidia.com/gpu", "device plugin"],
    ),
    (
        "only the PCI device is known",
        {},
        [
            NodeFacts(
                "pci-0", {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, {GPU: 0}
            )
        ],
        ["node pci-0 has an NVIDIA device", "install NVIDIA's driver and device plugin"],
    ),
    (
        "a GPU that nothing describes",
        {},
        [node()],
        ["node gpu-0", "label nvidia.com/gpu.memory is missing", "spec.gpu.memoryMiB"],
    ),
    (
        "a virtual GPU of a name that tells no size",
        {},
        [node(gpu__product="NVIDIA-A10", vgpu__present="true")],
        ["nvidia.com/vgpu.present=true", "nvidia.com/gpu.memory is missing", "spec.gpu.memoryMiB"],
    ),
    (
        "a memory label that is no number",
        {},
        [node(gpu__product="NVIDIA-L4", gpu__memory="22 GB")],
        ["node gpu-0", "nvidia.com/gpu.memory='22 GB'"],
    ),
]


@pytest.mark.parametrize(
    ("gpu", "nodes", "words"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_what_cannot_be_known_is_told_with_label_node_and_way_out(
    gpu: dict[str, Any], nodes: list[NodeFacts], words: list[str]
) -> None:
    outcome = look(resource({**SMALL, "gpu": gpu}), Observed(nodes=tuple(nodes)))
    status, reason, message = condition(outcome, "Planned")
    assert (status, reason) == ("False", "UnknownGPU")
    assert [word for word in words if word not in message] == [], message
    assert outcome.apply == ()


@pytest.mark.parametrize("nodes", [c[2] for c in REFUSED[1:3]] + [REFUSED[6][2]])
def test_memory_given_by_the_user_is_the_way_out_that_the_message_names(
    nodes: list[NodeFacts],
) -> None:
    name = next(iter(nodes[0].allocatable))
    gpu = {"memoryMiB": 20000, "resourceName": name}
    outcome = look(resource({**SMALL, "gpu": gpu}), Observed(nodes=tuple(nodes)))
    assert outcome.status["plan"]["device"]["memoryMiB"] == 20000
    assert template_of(outcome)["spec"]["containers"][0]["resources"]["limits"] == {name: 1}
