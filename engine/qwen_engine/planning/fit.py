"""Does it fit: how long a context the remaining bytes hold, and what would change that.

Called by plan.py with a draft of all settings; knows nothing of reasons or rendering.
"""

from __future__ import annotations

from dataclasses import replace

from qwen_engine.planning.draft import Draft
from qwen_engine.planning.ledger import blocks_for
from qwen_engine.planning.quantities import MIB, ceil_div

HIGHEST_UTILIZATION = 0.9  # planned by us; a user may demand more


def kv_budget_bytes(draft: Draft) -> int:
    """Return what is left for the KV cache; negative if even the rest does not fit."""
    return draft.budget_bytes - draft.fixed_bytes()


def num_blocks(draft: Draft) -> int:
    """Return the blocks of the pool.

    A GPU's memory is of no other use, so the pool takes all of it. On a CPU it stops where every
    sequence at its full length has its blocks.
    """
    each = draft.block_bytes
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
    each = draft.block_bytes
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
    blocks = max(
        blocks_for(draft.step.max_model_len, draft.block_size), draft.num_blocks_override or 0
    )
    kv_bytes = blocks * draft.block_bytes
    if draft.vllm is not None:
        needed = int((draft.fixed_bytes() + kv_bytes) / draft.utilization) + 1
        return ceil_div(draft.device.memory_for(needed), MIB) * MIB
    while True:  # the driver keeps a share of the memory, so what is needed grows with it a little
        needed = ceil_div(int((draft.fixed_bytes() + kv_bytes) / draft.utilization) + 1, MIB) * MIB
        if needed <= draft.device.memory_bytes:
            return needed
        larger = replace(draft.device, memory_bytes=needed, cuda_memory_bytes=None)
        draft = replace(draft, device=larger)
