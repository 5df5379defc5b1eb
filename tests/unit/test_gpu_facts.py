"""What gpu-feature-discovery's labels say of a node's GPUs, and what is made of their names."""

import pytest

from qwen_engine.planning import Device, UnknownGpuError
from qwen_operator.gpu_facts import gpu_of_node
from qwen_operator.node_facts import NodeFacts

MIB = 2**20
GPU = "nvidia.com/gpu"


def gpu_of(labels: dict[str, str], resource: str = GPU) -> Device:
    """What a node that offers one GPU gives for it."""
    return gpu_of_node(NodeFacts("n", labels, {resource: 1}), resource)


def labels(**values):
    return {f"nvidia.com/gpu.{key.replace('_', '.')}": value for key, value in values.items()}


def test_labels_give_memory_of_one_gpu_however_many_the_node_has():
    device = gpu_of(
        labels(
            product="NVIDIA-A10", memory="24576", count="4", compute_major="8", compute_minor="6"
        )
    )
    assert device.memory_bytes == 24576 * MIB
    assert device.capability == (8, 6)
    assert "nvidia.com/gpu.memory of node n" in device.source


def test_memory_written_in_bytes_by_old_releases_is_converted():
    device = gpu_of(labels(product="A100-SXM4-40GB", memory="42505273344"))
    assert device.memory_bytes == 40536 * MIB


def test_the_node_wins_over_the_catalogue():
    device = gpu_of(labels(product="NVIDIA-L4", memory="22000"))
    assert device.memory_bytes == 22000 * MIB
    assert device.capability == (8, 9)


def test_a_known_product_without_a_memory_label_uses_the_catalogue():
    device = gpu_of(labels(product="NVIDIA-L4"))
    assert device.memory_bytes == 23034 * MIB
    assert "catalogue" in device.source


def test_an_unknown_product_plans_from_its_memory():
    device = gpu_of(labels(product="NVIDIA-Z9", memory="50000"))
    assert device.memory_bytes == 50000 * MIB
    assert device.capability is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, r"label nvidia.com/gpu.memory is missing.*spec.gpu.memoryMiB"),
        (labels(product="NVIDIA-Z9"), r"'NVIDIA-Z9' is not in the catalogue"),
        (labels(product="NVIDIA-A100-SXM4-80GB-MIG-INVALID", memory="0"), "MIG layout"),
        (labels(product="NVIDIA-L4", memory="0"), "no number of MiB"),
        (labels(product="NVIDIA-L4", memory="22 GB"), "no number of MiB"),
        (labels(product="NVIDIA-L4-SHARED", memory="23034"), r"replicas=1 does not say"),
    ],
)
def test_labels_that_do_not_tell_the_memory_are_refused_by_name(found, message):
    with pytest.raises(UnknownGpuError, match=message):
        gpu_of(found)


def test_a_time_sliced_card_is_planned_as_a_share_of_its_memory():
    found = labels(product="NVIDIA-L4-SHARED", memory="23034", replicas="2")
    device = gpu_of(found)
    assert device.memory_bytes == 11517 * MIB
    assert "one of 2 shares" in device.source


def test_a_mig_slice_takes_its_own_memory_and_the_parents_capability():
    found = labels(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", memory="9728")
    device = gpu_of(found)
    assert device.memory_bytes == 9728 * MIB
    assert device.capability == (8, 0)


@pytest.mark.parametrize(
    ("product", "mib", "capability"),
    [
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 9059, (8, 0)),
        ("NVIDIA-A100-SXM4-80GB-MIG-1c.2g.20gb", 18119, (8, 0)),
        ("NVIDIA-A10-8Q", 7247, (8, 6)),
        ("GRID-A10-8Q", 7247, (8, 6)),
        ("NVIDIA-A100-SXM4-40GB-1-5C", 4529, (8, 0)),
        ("A100-SXM4-40GB-MIG-1g.5gb", 4529, (8, 0)),
    ],
)
def test_a_part_of_a_card_without_memory_label_has_the_size_in_its_name(product, mib, capability):
    device = gpu_of(labels(product=product))
    assert (device.memory_bytes // MIB, device.capability) == (mib, capability)
    assert "profile's name" in device.source


def test_a_virtual_gpu_whose_name_says_no_size_is_never_taken_for_its_card():
    found = {**labels(product="NVIDIA-A10"), "nvidia.com/vgpu.present": "true"}
    with pytest.raises(UnknownGpuError, match="a virtual GPU has but a part of NVIDIA-A10"):
        gpu_of(found)
