"""How much memory to give a CPU deployment whose author named no limit."""

from __future__ import annotations

from qwen_engine.planning import choices
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import cpu_device
from qwen_engine.planning.draft import Draft
from qwen_engine.planning.ledger import StepSize, blocks_for
from qwen_engine.planning.pictures import choose_pictures
from qwen_engine.planning.quantities import GIB, ceil_div
from qwen_engine.planning.shape import ModelShape

_FULL_LENGTH_REQUESTS = 4  # that the recommended pool holds at once


def recommend_cpu_memory(model: ModelShape, demands: Demands) -> int:
    """Return a memory limit in bytes, whole GiB, that holds four requests of full length."""
    model, device = demands.serve(model), cpu_device(0, source="recommended")
    profile = choices.profile_of(device)
    seqs = choices.choose_max_num_seqs(profile, demands).value
    context = choices.choose_context(profile, model, demands).value
    draft = Draft(
        model,
        device,
        choices.choose_dtype(model, device, demands).value,
        choices.choose_block_size(profile, demands).value,
        choices.choose_utilization(profile, demands).value,
        StepSize(
            choices.choose_batched_tokens(profile, demands, max_num_seqs=seqs).value,
            seqs,
            context,
        ),
        swap_bytes=int((demands.swap_space or 0) * GIB),
        pictures=choose_pictures(model, device, demands, context=context),
    )
    blocks = _FULL_LENGTH_REQUESTS * blocks_for(draft.step.max_model_len, draft.block_size)
    blocks = max(blocks, demands.num_gpu_blocks_override or 0)
    needed = draft.fixed_bytes() + blocks * draft.block_bytes
    return ceil_div(int(needed / draft.utilization) + 1, GIB) * GIB
