"""What an architecture's name in config.json fixes, for every architecture that can be planned."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.planning.tower import TowerKind


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture's name fixes beyond its config.

    Attributes:
        runs_here: this version's own engine runs it; the others are planned for vLLM.
    """

    qk_norm: bool = False
    qkv_bias: bool = False
    has_output_bias: bool = True  # if attention_bias is set
    has_mlp_bias: bool = False  # if mlp_bias is set
    default_head_dim: int | None = None  # instead of hidden size / heads
    prefix: str = "model."  # of the text decoder's names in a checkpoint
    skipped_prefix: str | None = None  # of a vision tower, which this version does not load
    runs_here: bool = True
    tower: TowerKind | None = None
    has_stacked_experts: bool = False  # all experts of a layer in one tensor


_VL_PREFIX, _TOWER_PREFIX = "model.language_model.", "model.visual."
ARCHITECTURES = {
    "Qwen3ForCausalLM": Architecture(qk_norm=True, default_head_dim=128),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True, has_output_bias=False),
    "LlamaForCausalLM": Architecture(has_mlp_bias=True),
    "Qwen3VLForConditionalGeneration": Architecture(
        qk_norm=True,
        default_head_dim=128,
        prefix=_VL_PREFIX,
        skipped_prefix=_TOWER_PREFIX,
        tower="qwen3",
    ),
    "Qwen3MoeForCausalLM": Architecture(qk_norm=True, default_head_dim=128),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        qk_norm=True,
        default_head_dim=128,
        prefix=_VL_PREFIX,
        skipped_prefix=_TOWER_PREFIX,
        tower="qwen3",
        has_stacked_experts=True,
    ),
    "Qwen2VLForConditionalGeneration": Architecture(
        qkv_bias=True, has_output_bias=False, runs_here=False, tower="qwen2"
    ),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        qkv_bias=True, has_output_bias=False, runs_here=False, tower="qwen2.5"
    ),
    "MistralForCausalLM": Architecture(has_output_bias=False, runs_here=False),
    "Mistral3ForConditionalGeneration": Architecture(
        has_output_bias=False, runs_here=False, tower="pixtral"
    ),
}


def runnable() -> list[str]:
    """Return the architectures that this version's own engine runs."""
    return [name for name, traits in ARCHITECTURES.items() if traits.runs_here]
