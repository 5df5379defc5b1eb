"""A mixture of experts: of many feed-forwards each token takes a few, chosen by a router.

Takes the place of a decoder layer's feed-forward in Qwen3-MoE and Qwen3-VL-MoE. Tokens are brought
together by expert, so that each expert's matrices are read once, for all the tokens that chose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.stacked import StackedLinear
from qwen_engine.layers.swiglu import swiglu
from qwen_engine.model_config import ModelConfig
from qwen_engine.planning.ledger import EXPERT_TILE_TOKENS

StoredShapes = Mapping[str, tuple[int, ...]]  # of a checkpoint's tensors, by name


class Experts(nn.Module):
    """The sum of what a token's experts make of it, weighted by the router."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden = config.experts, config.hidden_size
        assert experts is not None
        count, inner = experts.num_experts, experts.intermediate_size
        # Small and decisive: it stays as it is where the experts are made int8.
        self.router = nn.Parameter(torch.empty(count, hidden), requires_grad=False)
        self.gate_up = StackedLinear(count, hidden, {"gate_proj": inner, "up_proj": inner})
        self.down = StackedLinear(count, inner, {"down_proj": hidden})
        self.experts_per_token = experts.experts_per_token
        self.renormalises = config.renormalises_experts
        self.library: NativeLibrary | None = None  # for bfloat16 on a CPU

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, hidden] to the same shape, a tile of tokens at a time."""
        step = EXPERT_TILE_TOKENS
        tiles = [self._mix(hidden[first : first + step]) for first in range(0, len(hidden), step)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles)

    def checkpoint_tensors(self, prefix: str, stored: StoredShapes) -> Iterator[tuple[str, Target]]:
        """Yield what must be written, in the way that the checkpoint keeps the experts.

        Qwen3 and FP8 checkpoints have each expert's matrices by themselves; Qwen3-VL's have two
        tensors of all experts of a layer, transposed as published, plain as transformers 5 saves.
        """
        yield f"{prefix}gate.weight", self.router
        stacks = {f"{prefix}experts.gate_up_proj": self.gate_up}
        stacks[f"{prefix}experts.down_proj"] = self.down
        if not stacks.keys() <= stored.keys():
            for stack in stacks.values():
                yield from stack.checkpoint_tensors(f"{prefix}experts.")
            return
        is_plain = all(stored[name] == stack.stacked_shape for name, stack in stacks.items())
        for name, stack in stacks.items():
            yield name, stack.stacked_target(is_transposed=not is_plain)

    def _route(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and the numbers of each token's experts: [num_tokens, chosen]."""
        scores = functional.linear(hidden, self.router).softmax(dim=-1, dtype=torch.float32)
        weights, chosen = scores.topk(self.experts_per_token, dim=-1)
        if self.renormalises:
            weights /= weights.sum(dim=-1, keepdim=True)
        return weights.to(hidden.dtype), chosen

    def _mix(self, hidden: torch.Tensor) -> torch.Tensor:
        weights, chosen = self._route(hidden)
        each = chosen.flatten()
        order = each.argsort(stable=True)  # of (token, choice), the same experts side by side
        counts = each.bincount(minlength=len(self.router)).tolist()
        rows = hidden.index_select(0, order // self.experts_per_token)
        mapped = torch.empty_like(rows)  # in the order of `chosen`
        start = 0
        for index, count in enumerate(counts):
            if count:
                end = start + count
                gated = swiglu(self.gate_up(rows[start:end], index), self.library)
                mapped.index_copy_(0, order[start:end], self.down(gated, index))
                start = end
        mapped = mapped.view(*chosen.shape, -1)
        return torch.bmm(weights.unsqueeze(1), mapped).squeeze(1)
