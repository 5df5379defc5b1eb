"""GPU facts come from labels, the user or the catalogue, and the winner is recorded."""

import pytest

from qwen_engine.planning import UnknownGpuError, gpu_from_labels, gpu_from_spec, gpu_products

MIB = 2**20


def labels(**values):
    return {f"nvidia.com/gpu.{key.replace('_', '.')}": value for key, value in values.items()}


def test_labels_give_memory_of_one_gpu_however_many_the_node_has():
    device = gpu_from_labels(
        labels(
            product="NVIDIA-A10", memory="24576", count="4", compute_major="8", compute_minor="6"
        ),
        node="n",
    )
    assert device.memory_bytes == 24576 * MIB
    assert device.capability == (8, 6)
    assert "nvidia.com/gpu.memory of node n" in device.source


def test_memory_written_in_bytes_by_old_releases_is_converted():
    device = gpu_from_labels(labels(product="A100-SXM4-40GB", memory="42505273344"), node="n")
    assert device.memory_bytes == 40536 * MIB


def test_the_node_wins_over_the_catalogue():
    device = gpu_from_labels(labels(product="NVIDIA-L4", memory="22000"), node="n")
    assert device.memory_bytes == 22000 * MIB
    assert device.capability == (8, 9)


def test_a_known_product_without_a_memory_label_uses_the_catalogue():
    device = gpu_from_labels(labels(product="NVIDIA-L4"), node="n")
    assert device.memory_bytes == 23034 * MIB
    assert "catalogue" in device.source


def test_an_unknown_product_plans_from_its_memory():
    device = gpu_from_labels(labels(product="NVIDIA-Z9", memory="50000"), node="n")
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
        (labels(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"), "not in the catalogue"),
        (labels(product="NVIDIA-L4-SHARED", memory="23034"), r"replicas=1 does not say"),
    ],
)
def test_labels_that_do_not_tell_the_memory_are_refused_by_name(found, message):
    with pytest.raises(UnknownGpuError, match=message):
        gpu_from_labels(found, node="n")


def test_a_time_sliced_card_is_planned_as_a_share_of_its_memory():
    found = labels(product="NVIDIA-L4-SHARED", memory="23034", replicas="2")
    device = gpu_from_labels(found, node="n")
    assert device.memory_bytes == 11517 * MIB
    assert "one of 2 shares" in device.source


def test_a_mig_slice_takes_its_own_memory_and_the_parents_capability():
    found = labels(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", memory="9728")
    device = gpu_from_labels(found, node="n")
    assert device.memory_bytes == 9728 * MIB
    assert device.capability == (8, 0)


def test_a_product_from_the_user_needs_memory_unless_the_catalogue_knows_it():
    assert gpu_from_spec("NVIDIA-L4").memory_bytes == 23034 * MIB
    assert gpu_from_spec("NVIDIA-Z9", 10000).memory_bytes == 10000 * MIB
    assert gpu_from_spec(None, 10000).memory_bytes == 10000 * MIB
    with pytest.raises(UnknownGpuError, match="memoryMiB"):
        gpu_from_spec("NVIDIA-Z9")


def test_every_catalogue_row_is_plausible():
    for name, row in gpu_products().items():
        assert 4000 < row.memory_mib < 400_000, name
        assert (7, 0) <= row.capability <= (13, 0), name
        assert row.consumer == ("GeForce" in name), name
