"""All settings of one plan, chosen and made to fit: the draft, and each choice with its reason.

Called by `plan` for each tensor parallel size, and by `refusal` to try a way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qwen_engine.planning import choices
from qwen_engine.planning.choices import Choice, Profile
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.draft import Draft
from qwen_engine.planning.errors import InvalidDemandError, UnsupportedModelError
from qwen_engine.planning.fit import (
    HIGHEST_UTILIZATION,
    fits,
    kv_budget_bytes,
)
from qwen_engine.planning.ledger import StepSize, block_bytes
from qwen_engine.planning.parallel import precision_notes, tensor_parallel_sizes
from qwen_engine.planning.picture_fit import fit_context, fit_pictures
from qwen_engine.planning.pictures import Pictures, choose_pictures, image_pixels
from qwen_engine.planning.quantities import format_bytes
from qwen_engine.planning.relax import SHORTEST_PLANNED_CONTEXT, can_fit, relax
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.support import runs_here
from qwen_engine.planning.swap import SwapSpace, choose_swap_space
from qwen_engine.planning.vllm_step import NO_FLAGS, VllmFlags
from qwen_engine.planning.vllm_version import NEWEST, VllmVersion, parse_version


@dataclass(frozen=True, slots=True)
class Settled:
    """A draft and the choices behind it; it may still not fit."""

    draft: Draft
    dtype: Choice[DTypeName]
    context: Choice[int]
    block_size: Choice[int]
    utilization: Choice[float]
    tokens: Choice[int]
    seqs: Choice[int]
    swap: SwapSpace
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)  # of what was given up


def settle(model: ModelShape, device: Device, demands: Demands) -> Settled:
    """Choose everything, for the smallest tensor parallel size that fits (the largest if none).

    Raises:
        InvalidDemandError: a demand cannot be met whatever the memory.
        UnsupportedModelError: the engine cannot run the model.
    """
    if demands.engine == "qwen" and not runs_here(model):
        raise UnsupportedModelError(_needs_vllm(model))
    notes, model = precision_notes(model, device, demands), demands.serve(model)
    sizes = tensor_parallel_sizes(model, device, demands)
    drafts = (_choose(model, device, demands, size) for size in sizes)
    chosen = next((found for found in drafts if _can_fit(found.draft, demands)), None)
    chosen = chosen or _choose(model, device, demands, sizes[-1])
    return replace(_make_it_fit(chosen, demands), notes=notes)


def is_possible(model: ModelShape, device: Device, demands: Demands) -> bool:
    """Say whether a plan can be made, without making it."""
    if demands.engine == "qwen" and not runs_here(model):
        return False
    precision_notes(model, device, demands)
    model = demands.serve(model)
    return any(
        _can_fit(_choose(model, device, demands, size).draft, demands)
        for size in tensor_parallel_sizes(model, device, demands)
    )


def _can_fit(draft: Draft, demands: Demands) -> bool:
    if demands.gpu_memory_utilization is None and draft.device.dedicated:
        draft = replace(draft, utilization=max(draft.utilization, HIGHEST_UTILIZATION))
    return can_fit(draft, demands)


def _needs_vllm(model: ModelShape) -> str:
    packing = model.quantization
    what = f"{packing.method} weights" if packing else f"a {model.architecture}"
    return (
        f"model {model.model_id!r} has {what}, which this version's own engine does not run: plan "
        "it for vLLM (--engine vllm, spec.engine.runtime: VLLM), or use an unquantised Qwen3, "
        "Qwen3-VL, Qwen2 or Llama"
    )


def _choose(model: ModelShape, device: Device, demands: Demands, size: int) -> Settled:
    """Choose what is usual, whether it fits or not."""
    profile = choices.profile_of(device)
    dtype = choices.choose_dtype(model, device, demands)
    block_size = choices.choose_block_size(profile, demands)
    seqs = choices.choose_max_num_seqs(profile, demands)
    tokens = choices.choose_batched_tokens(profile, demands, max_num_seqs=seqs.value)
    context = choices.choose_context(profile, model, demands)
    utilization = choices.choose_utilization(profile, demands)
    swap = choose_swap_space(
        profile, device, demands, block_bytes=block_bytes(model, dtype.value, block_size.value)
    )
    vllm, flags = _vllm(demands, size)
    draft = Draft(
        model, device, dtype.value, block_size.value, utilization.value,
        StepSize(tokens.value, seqs.value, context.value), demands.num_gpu_blocks_override,
        swap.num_bytes if device.kind == "cpu" else 0, vllm, flags,
        _pictures(model, device, demands, context.value),
    )  # fmt: skip
    return Settled(draft, dtype, context, block_size, utilization, tokens, seqs, swap)


def _pictures(model: ModelShape, device: Device, demands: Demands, context: int) -> Pictures | None:
    if demands.engine != "qwen":
        return None
    return choose_pictures(model, device, demands, context=context)


def _make_it_fit(chosen: Settled, demands: Demands) -> Settled:
    """Raise the utilisation, give up what can be, and shorten the context."""
    profile, tokens, seqs = choices.profile_of(chosen.draft.device), chosen.tokens, chosen.seqs
    draft, utilization = _raise_utilization(chosen.draft, chosen.utilization, demands)
    draft, reasons = relax(draft, demands)
    draft, context = _shorten_context(draft, chosen.context, demands, profile)
    if "tokens" in reasons:
        tokens = Choice(draft.step.max_num_batched_tokens, reasons["tokens"])
    if "seqs" in reasons:
        seqs = Choice(draft.step.max_num_seqs, reasons["seqs"])
    return replace(
        chosen, draft=draft, context=context, utilization=utilization, tokens=tokens, seqs=seqs,
        reasons=reasons,
    )  # fmt: skip


def _vllm(demands: Demands, size: int) -> tuple[VllmVersion | None, VllmFlags]:
    if demands.engine != "vllm":
        return None, NO_FLAGS
    if demands.quantization != "none":
        raise InvalidDemandError(
            "quantization",
            demands.quantization,
            "our own engine makes it at load; for vLLM take a checkpoint that is packed",
        )
    version = parse_version(demands.engine_version) if demands.engine_version else NEWEST
    # vLLM's int8 has a scale for each token and head, as ours has, and that in its name.
    kv_name = {"int8": "int8_per_token_head"}.get(demands.kv_cache_dtype, demands.kv_cache_dtype)
    flags = VllmFlags(
        tensor_parallel_size=size,
        enforce_eager=demands.enforce_eager,
        kv_cache_dtype=kv_name,
        limit_mm_per_prompt=demands.limit_mm_per_prompt or {},
        max_pixels=image_pixels(demands),
    )
    return version, flags


def _raise_utilization(
    draft: Draft, choice: Choice[float], demands: Demands
) -> tuple[Draft, Choice[float]]:
    """Raise a planned utilisation in steps of 0.05 while the context does not fit."""
    if demands.gpu_memory_utilization is not None or not draft.device.dedicated:
        return draft, choice
    raised = draft
    while not fits(raised) and raised.utilization < HIGHEST_UTILIZATION:
        higher = min(HIGHEST_UTILIZATION, round(raised.utilization + 0.05, 2))
        raised = replace(raised, utilization=higher)
    if raised is draft:
        return draft, choice
    left = format_bytes(max(0, kv_budget_bytes(draft)))
    reason = (
        f"raised from {draft.utilization:g}, which leaves {left} for KV: too little for "
        f"{draft.step.max_model_len:,} tokens"
    )
    return raised, Choice(raised.utilization, reason)


def _shorten_context(
    draft: Draft, choice: Choice[int], demands: Demands, profile: Profile
) -> tuple[Draft, Choice[int]]:
    """Make pictures smaller and shorten a planned context to what fits."""
    if fits(draft):
        return draft, choice
    if demands.max_model_len is not None:
        return fit_pictures(draft), choice
    found = fit_context(draft, shortest=SHORTEST_PLANNED_CONTEXT)
    length = found.step.max_model_len
    if not fits(found):
        return found, choice
    wished = f"{choice.value:,} are usual on {profile.name}"
    if demands.longest_context:
        wished = f"the model has {choice.value:,}"
    beside = ""
    if found.pictures is not None:
        beside = f" beside pictures of {found.pictures.largest_tokens:,} tokens"
    return found, Choice(length, f"the most that fits{beside}; {wished}")
