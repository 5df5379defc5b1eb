"""vLLM on a card: what it will print, and whether it starts.

The same arithmetic serves a plan for the VLLM runtime and the check against start-up logs that
users published (tests/cases/score_planner.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwen_engine.planning.quantities import ceil_div
from qwen_engine.planning.shape import ModelShape
from qwen_engine.planning.vllm_memory import (
    activation_terms,
    deepstack_bytes,
    graph_bytes,
    non_torch_bytes,
    platform_bytes,
    vllm_weight_bytes,
)
from qwen_engine.planning.vllm_step import VllmFlags, VllmStart, VllmStep, resolve_step

Outcome = Literal["ok", "refused", "oom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPrice:
    """One GPU's bytes, and what follows from them.

    Attributes:
        activation_bytes: the largest of `peaks`.
        budget_bytes: what CUDA reports × utilisation.
        kv_bytes: what is left for KV; may be negative.
        token_bytes: of one token on one GPU.
        needed_bytes: of one request of the full length.
    """

    step: VllmStep
    weight_bytes: int
    activation_bytes: int
    peak: str
    non_torch_bytes: int
    graph_bytes: int
    budget_bytes: int
    kv_bytes: int
    token_bytes: float
    needed_bytes: int
    outcome: Outcome


def price_vllm(start: VllmStart) -> VllmPrice:
    """Price a start of vLLM; of a pipeline's stages the one with the least KV counts."""
    stages = {0, start.flags.pipeline_parallel_size - 1}
    return min((_price_stage(start, stage) for stage in stages), key=lambda price: price.kv_bytes)


def _price_stage(start: VllmStart, stage: int) -> VllmPrice:
    model, device, flags, step = start.model, start.device, start.flags, resolve_step(start)
    weights = vllm_weight_bytes(start, stage=stage) + platform_bytes(device)
    weights += deepstack_bytes(model, step) if stage == 0 else 0
    peaks = activation_terms(start, step)
    if flags.pipeline_parallel_size > 1:
        peaks.pop("sampler" if stage == 0 else "vision", None)
    peak = max(peaks, key=lambda name: peaks[name])
    other, graphs = non_torch_bytes(start), graph_bytes(start, step)
    budget = int(device.visible_bytes * step.utilization)
    counted = graphs if start.version.counts_graphs else 0
    kv = budget - weights - peaks[peak] - other - counted
    each = token_bytes(model, flags)
    needed = int(each * flags.block_size) * ceil_div(step.max_model_len, flags.block_size)
    free = device.visible_bytes - weights - other
    return VllmPrice(
        step=step,
        weight_bytes=weights,
        activation_bytes=peaks[peak],
        peak=peak,
        non_torch_bytes=other,
        graph_bytes=graphs,
        budget_bytes=budget,
        kv_bytes=kv,
        token_bytes=each,
        needed_bytes=needed,
        outcome=_outcome(free=free, peak=peaks[peak], kv=kv, needed=needed, graphs=graphs),
    )


def _outcome(*, free: int, peak: int, kv: int, needed: int, graphs: int) -> Outcome:
    if free < peak:
        return "oom"  # while weights load or the profile runs
    if kv < needed:
        return "refused"
    return "oom" if free - kv < graphs else "ok"


def token_bytes(model: ModelShape, flags: VllmFlags) -> float:
    """Return the KV bytes of one token on one GPU; heads are replicated where t is larger."""
    layers = ceil_div(model.num_layers, flags.pipeline_parallel_size)
    heads = max(1, ceil_div(model.num_kv_heads, flags.tensor_parallel_size))
    head = model.head_dim * kv_element_bytes(flags.kv_cache_dtype)
    scale = 4 if flags.kv_cache_dtype.endswith("per_token_head") else 0
    return 2 * layers * heads * (head + scale)


def kv_element_bytes(name: str) -> float:
    """Return the bytes of one key or value; `turboquant_k3v4` has 3 and 4 bits and scales."""
    if name.startswith("turboquant_k"):
        bits = [int(char) for char in name.removeprefix("turboquant_") if char.isdigit()]
        return (sum(bits) / len(bits) + 1.5) / 8
    return 1 if name.startswith(("fp8", "int8")) else 2
