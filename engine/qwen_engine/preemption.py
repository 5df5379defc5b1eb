"""Swap or recompute: which costs less for a sequence that must make room.

Used by `scheduler`; the two rates are measured by `worker` when the engine starts, on the machine
and with the model that it serves, so no table of devices can be wrong.

The rule: swapping moves each block out and in again; recomputing runs each token through the model
again. Swap where 2 × blocks × seconds_per_block < tokens × seconds_per_token. In bytes and FLOPs
that is 2 × kv_bytes ÷ copy_rate against 2 × parameters ÷ compute_rate for a token, so a small model
on a fast GPU recomputes and a large one, or any on a CPU, swaps. Tokens that the prefix cache may
still hold on return are not counted: nobody knows then what others will have overwritten.

Measured with SmolLM2-135M in bfloat16 on two cores that other programs used too: 1.4 ms for a block
of 16 tokens one way, 43 ms for a token. Swapping 16 tokens costs 2.8 ms, computing them 680 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.config import PreemptionMode


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """Measured rates; either may be 0 where it does not matter."""

    seconds_per_block: float  # moved one way
    seconds_per_token: float  # computed in a chunk of a prompt


NO_COSTS = PreemptionCosts(0.0, 0.0)  # where the mode is given


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """What to do with a victim; `costs` decide where the mode is auto."""

    mode: PreemptionMode
    costs: PreemptionCosts

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Say whether moving the blocks out and in costs less than computing the tokens again."""
        if self.mode != "auto":
            return self.mode == "swap"
        moved = 2 * num_blocks * self.costs.seconds_per_block
        return moved < num_tokens * self.costs.seconds_per_token


RECOMPUTE = PreemptionPolicy("recompute", NO_COSTS)  # where there is no swap space
