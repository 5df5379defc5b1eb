"""The planner's constants for vLLM: few, each of one cause, none of one record.

README.md of this folder has the source and the residual of each. They are one value object so that
tests/cases/score_planner.py can fit them without a record and predict that record.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.planning.quantities import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConstants:
    """Bytes and counts that only measurements tell.

    Attributes:
        context_v0_bytes: CUDA context and kernels loaded after the engine's first look at the card.
        context_v1_bytes: the same for V1, which starts its profile earlier.
        nccl_v0_bytes, nccl_v1_bytes: channels and all-reduce buffers once there are two GPUs.
        symmetric_bytes: symmetric memory and fused all-reduce over NVLink.
        sorted_sampler_bytes: per sequence and word, while the sampler sorted: logits and their
            sorted copy in float32, 8-byte indices, probabilities, their sum, masks, sort buffers.
        fused_sampler_bytes: the same with the Triton kernel: 16-bit and float32 logits,
            float32 probabilities and noise.
        hidden_tensors: token × hidden tensors alive in an MLP: residual, input, normed, output.
        tower_tensors: patch × width tensors alive in a vision block: qkv and its copies, the
            rotation in float32, the MLP.
        quantised_bytes: workspaces and modules of the kernels for packed weights that the profile
            run loads, from 0.21 on.
        graph_bytes: what each captured batch size keeps per layer.
    """

    context_v0_bytes: float = 0.05 * GIB
    context_v1_bytes: float = 0.13 * GIB
    nccl_v0_bytes: float = 0.18 * GIB
    nccl_v1_bytes: float = 0.42 * GIB
    symmetric_bytes: float = 1.55 * GIB
    sorted_sampler_bytes: float = 38
    fused_sampler_bytes: float = 14
    hidden_tensors: float = 4
    tower_tensors: float = 17
    quantised_bytes: float = 0.7 * GIB
    graph_bytes: float = 0.2 * MIB


CONSTANTS = VllmConstants()
