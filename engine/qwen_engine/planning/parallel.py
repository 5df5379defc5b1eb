"""Which tensor parallel sizes a model can run with, and what a card's capability means for it."""

from __future__ import annotations

from collections.abc import Iterator

from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import InvalidDemandError
from qwen_engine.planning.shape import ModelShape

LARGEST_TENSOR_PARALLEL = 16  # GPUs of the largest nodes
_FP8_NATIVE, _FP8_WEIGHTS_ONLY = (8, 9), (8, 0)


def tensor_parallel_sizes(model: ModelShape, device: Device, demands: Demands) -> list[int]:
    """Return the sizes to try, the smallest first.

    Raises:
        InvalidDemandError: the demanded size cannot divide this model.
    """
    if demands.tensor_parallel_size is not None:
        size = demands.tensor_parallel_size
        if problem := tensor_parallel_problem(model, size):
            raise InvalidDemandError("tensor_parallel_size", size, problem)
        return [size]
    most = device.count if demands.engine == "vllm" else 1
    sizes = [2**n for n in range(LARGEST_TENSOR_PARALLEL.bit_length()) if 2**n <= most]
    return [size for size in sizes or [1] if tensor_parallel_problem(model, size) is None] or [1]


def tensor_parallel_problem(model: ModelShape, size: int) -> str | None:
    """Say why a model cannot be divided by a size; None if it can.

    Heads are whole; a shard of FP8 weights with block scales is a whole number of blocks
    (vllm-project/vllm issue 25292).
    """
    if model.num_heads % size:
        return f"does not divide the model's {model.num_heads} attention heads"
    packing = model.quantization
    if packing is None or not packing.is_fp8 or packing.block[0] < 2:
        return None
    inner = model.experts.intermediate_size if model.experts else model.intermediate_size
    if inner % (size * packing.block[0]):
        return (
            f"leaves {inner / size:g} rows of the MLP's {inner} on each GPU, which is no multiple "
            f"of the FP8 blocks' {packing.block[0]}"
        )
    return None


def _own_notes(model: ModelShape, device: Device) -> Iterator[str]:
    """Yield what our own engine makes of a model that others run differently."""
    if model.quantization is not None:
        yield "FP8 weights are widened to 16 bits while they are read"
    if model.experts is not None and device.kind != "cpu":
        yield (
            "this engine computes a step's experts one after the other; vLLM has kernels that "
            "compute them together (--engine vllm, spec.engine.runtime: VLLM)"
        )


def precision_notes(model: ModelShape, device: Device, demands: Demands) -> tuple[str, ...]:
    """Return what a card does with the model's packed weights.

    Raises:
        InvalidDemandError: it has no way to run them.
    """
    packing, capability = model.quantization, device.capability
    if demands.engine == "qwen":
        return tuple(_own_notes(model, device))
    if packing is None or capability is None:
        return ()
    name = f"{device.product} (capability {capability[0]}.{capability[1]})"
    if packing.is_fp8 and capability < _FP8_WEIGHTS_ONLY:
        raise InvalidDemandError(
            "model",
            model.model_id,
            f"its weights are FP8, which {name} cannot run: that takes 8.0 for the weights alone "
            "and 8.9 for the products; use the 16-bit or the AWQ checkpoint",
        )
    if packing.is_fp8 and capability < _FP8_NATIVE:
        return (
            f"{name} has no FP8 tensor cores: weights are kept in FP8 and widened for each product",
        )
    return ()
