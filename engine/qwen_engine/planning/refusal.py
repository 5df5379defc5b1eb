"""Says why a draft does not fit, the longest context that would, and the one change that helps."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from qwen_engine.planning.demands import Demands
from qwen_engine.planning.errors import DoesNotFitError
from qwen_engine.planning.fit import (
    HIGHEST_UTILIZATION,
    Draft,
    budget_bytes,
    fits,
    fixed_bytes,
    largest_context,
    memory_needed,
)
from qwen_engine.planning.ledger import block_bytes, blocks_for, runtime_line
from qwen_engine.planning.quantities import MIB, format_bytes
from qwen_engine.planning.weights import weight_bytes

_SHORTEST_USEFUL = 256  # tokens; a shorter context is no way out


def refuse(draft: Draft, demands: Demands) -> NoReturn:
    """Raise DoesNotFitError with the figures and the smallest single change that helps."""
    largest = largest_context(draft)
    raise DoesNotFitError(
        _figures(draft, largest),
        largest_model_len=largest,
        suggestion=_single_change(draft, demands, largest),
    )


def _figures(draft: Draft, largest: int) -> str:
    length, override = draft.step.max_model_len, draft.num_blocks_override
    needed = blocks_for(length, draft.block_size)
    each = block_bytes(draft.model, draft.dtype, draft.block_size)
    weights = weight_bytes(draft.model, draft.dtype)
    fixed = fixed_bytes(draft)
    other = fixed - weights - runtime_line(draft.device, draft.model).num_bytes
    blocks = needed if override is None else override
    return (
        f"{draft.model.model_id} does not fit on {draft.device.product} for {length:,} tokens: "
        f"weights {format_bytes(weights)} + runtime "
        f"{format_bytes(runtime_line(draft.device, draft.model).num_bytes)} + activations "
        f"{format_bytes(other)} + {blocks:,} KV blocks of {format_bytes(each)} = "
        f"{format_bytes(fixed + blocks * each)}, but {draft.utilization:g} × "
        f"{format_bytes(draft.device.memory_bytes)} = {format_bytes(budget_bytes(draft))}"
        + (f" and one request needs {needed:,} blocks" if override is not None else "")
        + f". The largest context that fits is {largest:,} tokens."
    )


def _single_change(draft: Draft, demands: Demands, largest: int) -> str:
    """Return the first change, cheapest to the user first, that alone makes the draft fit."""
    if draft.num_blocks_override is not None:
        without = replace(draft, num_blocks_override=None)
        if fits(without):
            return "Drop numGpuBlocksOverride (--num-gpu-blocks-override): then it fits."
    higher = replace(draft, utilization=HIGHEST_UTILIZATION)
    if draft.utilization < HIGHEST_UTILIZATION and fits(higher):
        return (
            f"Raise gpuMemoryUtilization (--gpu-memory-utilization) to {HIGHEST_UTILIZATION:g}: "
            "then it fits."
        )
    if demands.max_model_len is not None and largest >= _SHORTEST_USEFUL:
        return f"Set maxModelLen (--max-model-len) to {largest} or less: then it fits."
    return _more_memory(draft)


def _more_memory(draft: Draft) -> str:
    needed = memory_needed(draft)
    if draft.device.kind == "cpu":
        return f"Raise the memory limit to {needed // MIB} Mi: then it fits."
    return f"Use a GPU with at least {needed // MIB:,} MiB: then it fits."
