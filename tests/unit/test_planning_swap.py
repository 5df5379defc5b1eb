"""Swap space: planned by class of card within the host's memory, none on a CPU unless demanded."""

from dataclasses import replace

import pytest

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidDemandError,
    cpu_device,
    find_model,
    gpu_from_spec,
    make_plan,
    plan_to_dict,
    recommend_cpu_memory,
)

GIB = 2**30
MODEL = find_model("Qwen/Qwen3-0.6B")
CPU = cpu_device(8 * GIB, source="limit")


def gpu(product, host_gib):
    host = None if host_gib is None else host_gib * GIB
    return replace(gpu_from_spec(product), host_memory_bytes=host)


def plan(device, **demands):
    return make_plan(MODEL, device, Demands(**demands))


def setting(found):
    return next((s.value, s.reason) for s in found.settings if s.flag == "--swap-space")


@pytest.mark.parametrize(
    ("product", "host_gib", "expected"),
    [
        ("NVIDIA-GeForce-RTX-3060", 64, ("4", "usual on a 12 GB consumer card")),
        ("NVIDIA-GeForce-RTX-4090", 64, ("4", "usual on a 24 GB consumer card")),
        ("NVIDIA-H100-80GB-HBM3", 512, ("16", "usual on an 80 GB data-centre card")),
        ("NVIDIA-H100-80GB-HBM3", 32, ("8", "a quarter of the host's 32.00 GiB, in whole GiB")),
        ("NVIDIA-GeForce-RTX-4090", 3, ("0", "a quarter of the host's 3.00 GiB, in whole GiB")),
        ("NVIDIA-L4", None, ("0", "nothing says how much memory the host has")),
    ],
)
def test_the_usual_size_is_bounded_by_the_host(product, host_gib, expected):
    assert setting(plan(gpu(product, host_gib))) == expected


def test_a_cpu_gives_all_its_memory_to_the_kv_cache():
    found = plan(CPU)
    assert setting(found) == ("0", "on a CPU it would take from the KV cache, which serves better")
    assert found.num_cpu_blocks == 0
    assert "swap" not in [line.component for line in found.ledger]


def test_on_a_cpu_a_demanded_swap_space_is_a_line_of_the_ledger():
    found = plan(CPU, swap_space=1.5)
    [line] = [line for line in found.ledger if line.component == "swap"]
    assert line.num_bytes == found.num_cpu_blocks * found.block_bytes <= 1.5 * GIB
    assert line.num_bytes > 1.5 * GIB - found.block_bytes
    assert found.num_blocks <= plan(CPU).num_blocks
    assert setting(found) == ("1.5", "as demanded")


def test_on_a_cpu_a_swap_space_beyond_the_memory_does_not_fit():
    with pytest.raises(DoesNotFitError):
        plan(CPU, swap_space=8)


def test_a_recommended_cpu_memory_holds_the_demanded_swap_space():
    demands = Demands(swap_space=4)
    without, memory = recommend_cpu_memory(MODEL, Demands()), recommend_cpu_memory(MODEL, demands)
    assert memory >= without + 4 * GIB
    assert make_plan(MODEL, cpu_device(memory, source="recommended"), demands).num_cpu_blocks > 0


def test_on_a_gpu_it_is_the_hosts_memory_and_has_a_ledger_of_its_own():
    device = gpu("NVIDIA-L4", 64)
    found, without = plan(device), plan(device, swap_space=0)
    assert found.ledger == without.ledger
    swap = found.host_ledger[-1]
    assert (swap.component, swap.num_bytes) == ("swap", found.num_cpu_blocks * found.block_bytes)
    assert plan_to_dict(found)["hostLedger"][-1]["bytes"] == swap.num_bytes
    assert sum(line.num_bytes for line in found.host_ledger) <= 64 * GIB


def test_more_than_the_host_has_is_refused_with_the_figures():
    with pytest.raises(InvalidDemandError, match=r"swap_space.*16\.00 GiB, of which it needs 700"):
        plan(gpu("NVIDIA-L4", 16), swap_space=15.5)
    assert plan(gpu("NVIDIA-L4", 16), swap_space=15).num_cpu_blocks > 0


@pytest.mark.parametrize("gib", [-1, float("nan"), float("inf")])
def test_a_size_that_cannot_be_is_refused(gib):
    with pytest.raises(InvalidDemandError, match="swap_space"):
        Demands(swap_space=gib)
