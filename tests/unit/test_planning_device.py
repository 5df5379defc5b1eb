"""GPU facts come from labels, the user or the catalogue, and the winner is recorded."""

import pytest

from qwen_engine.planning import UnknownGpuError, gpu_from_spec, gpu_products

MIB = 2**20


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
