"""Plans for 8 bits: the bytes follow, and the engine is told."""

import pytest

from qwen_engine.planning import Demands, InvalidDemandError, find_model, gpu_from_spec, make_plan
from qwen_engine.planning.ledger import blocks_for

SMALL, L4 = "Qwen/Qwen3-0.6B", gpu_from_spec("NVIDIA-L4")


def plan(**demands):
    return make_plan(find_model(SMALL), L4, Demands(**demands))


def line(found, component):
    return next(line for line in found.ledger if line.component == component)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_an_eight_bit_cache_holds_nearly_twice_the_tokens_and_says_its_scales(kind):
    plain, found = plan(), plan(kv_cache_dtype=kind)
    assert 1.9 < found.num_blocks / plain.num_blocks < 2
    assert found.block_bytes == 2 * 28 * 8 * (128 + 2) * found.block_size
    assert f"(128 B {kind} + 2 B scale)" in line(found, "kv-cache").how
    words = found.args()
    assert words[words.index("--kv-cache-dtype") + 1] == kind
    assert "--kv-cache-dtype" not in plain.args()


def test_swap_space_counts_the_same_blocks():
    found = plan(kv_cache_dtype="int8", swap_space=1)
    assert found.num_cpu_blocks == 2**30 // found.block_bytes
    assert blocks_for(found.max_model_len, found.block_size) <= found.num_blocks


def test_a_cache_type_that_is_unknown_is_refused_with_those_that_are():
    with pytest.raises(InvalidDemandError, match="auto, int8, fp8") as caught:
        Demands(kv_cache_dtype="int4")
    assert caught.value.field == "kv_cache_dtype"


def test_int8_weights_take_half_and_are_still_read_whole():
    plain, found = plan(), plan(quantization="int8")
    assert 0.49 < line(found, "weights").num_bytes / line(plain, "weights").num_bytes < 0.51
    assert "int8" in line(found, "weights").how
    assert found.load_bytes == plain.load_bytes == line(plain, "weights").num_bytes
    words = found.args()
    assert words[words.index("--quantization") + 1] == "int8"
    assert found.num_blocks > plain.num_blocks


def test_a_method_that_is_unknown_is_refused_with_the_way_out():
    with pytest.raises(InvalidDemandError, match="must be none or int8") as caught:
        Demands(quantization="awq")
    assert caught.value.field == "quantization"
