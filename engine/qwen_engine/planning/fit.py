"""Does it fit: how long a context the remaining bytes hold, and what would change that.

Called by plan.py with a draft of all settings; knows nothing of reasons or rendering.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qwen_engine.planning.device import Device
from qwen_engine.planning.ledger import (
    StepSize,
    activation_bytes,
    block_bytes,
    blocks_for,
    runtime_line,
)
from qwen_engine.planning.quantities import MIB, ceil_div
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.weights import weight_bytes

HIGHEST_UTILIZATION = 0.9  # planned by us; a user may demand more


@dataclass(frozen=True, slots=True)
class Draft:
    """All settings that bytes depend on."""

    model: ModelShape
    device: Device
    dtype: DTypeName
    block_size: int
    utilization: float
    step: StepSize
    num_blocks_override: int | None = None
    swap_bytes: int = 0  # of the device's own memory: on a CPU

    def with_context(self, max_model_len: int) -> Draft:
        """Return the draft for another context length, in tokens."""
        return replace(self, step=replace(self.step, max_model_len=max_model_len))


def budget_bytes(draft: Draft) -> int:
    """Return what the engine may take of the device."""
    return int(draft.device.memory_bytes * draft.utilization)


def fixed_bytes(draft: Draft) -> int:
    """Return everything but the KV cache."""
    weights = weight_bytes(draft.model, draft.dtype)
    activations = activation_bytes(draft.model, draft.dtype, draft.step)
    return (
        runtime_line(draft.device, draft.model).num_bytes + weights + activations + draft.swap_bytes
    )


def kv_budget_bytes(draft: Draft) -> int:
    """Return what is left for the KV cache; negative if even the rest does not fit."""
    return budget_bytes(draft) - fixed_bytes(draft)


def num_blocks(draft: Draft) -> int:
    """Return the blocks of the pool.

    A GPU's memory is of no other use, so the pool takes all of it. On a CPU it stops where every
    sequence at its full length has its blocks.
    """
    each = block_bytes(draft.model, draft.dtype, draft.block_size)
    fitting = max(0, kv_budget_bytes(draft) // each)
    if draft.num_blocks_override is not None:
        return draft.num_blocks_override
    if draft.device.kind == "gpu":
        return fitting
    return min(fitting, useful_blocks(draft))


def useful_blocks(draft: Draft) -> int:
    """Return the blocks that max_num_seqs sequences of full length take."""
    return draft.step.max_num_seqs * blocks_for(draft.step.max_model_len, draft.block_size)


def fits(draft: Draft) -> bool:
    """Say whether one request of max_model_len fits, and an override stays inside its budget."""
    each = block_bytes(draft.model, draft.dtype, draft.block_size)
    available = kv_budget_bytes(draft)
    needed = blocks_for(draft.step.max_model_len, draft.block_size)
    override = draft.num_blocks_override
    if override is not None and (override < needed or override * each > available):
        return False
    return needed * each <= available


def largest_context(draft: Draft) -> int:
    """Return the longest context up to the draft's own that fits, in tokens; 0 if none does."""
    low, high = 0, draft.step.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if fits(draft.with_context(middle)):
            low = middle
        else:
            high = middle - 1
    return low


def memory_needed(draft: Draft) -> int:
    """Return the device memory, in bytes, whole MiB, at which the draft fits."""
    each = block_bytes(draft.model, draft.dtype, draft.block_size)
    blocks = max(
        blocks_for(draft.step.max_model_len, draft.block_size), draft.num_blocks_override or 0
    )
    needed = int((fixed_bytes(draft) + blocks * each) / draft.utilization) + 1
    return ceil_div(needed, MIB) * MIB
