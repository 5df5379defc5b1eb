"""What a plan gives up, in this order, before it shortens the context: nothing that was demanded.

First, in our own engine, pictures of more than 2048 × 2048 pixels. Then the step: fewer tokens,
then fewer sequences. Then, for vLLM and only if that alone makes the context fit: smaller pictures,
then CUDA graphs. Called by `settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from qwen_engine.planning.demands import Demands
from qwen_engine.planning.draft import Draft
from qwen_engine.planning.fit import fits
from qwen_engine.planning.picture_fit import smallest_pictures, with_smaller_pictures
from qwen_engine.planning.quantities import format_bytes

SHORTEST_PLANNED_CONTEXT = 512  # tokens; below this a chat has no room to answer
_LEAST_TOKENS = 2048  # of a step: vLLM's own default
# Sequences of a step: what a long context that was asked for may leave, and one that was not.
_LEAST_SEQS, _LEAST_USUAL_SEQS = 16, 64
_USUAL_PICTURE = 4096  # tokens: 2048 × 2048 pixels in Qwen3-VL
_LEAST_PICTURE_TOKENS = 2048  # 1920 × 1080 pixels in Qwen3-VL

Reasons = dict[str, str]


def relax(draft: Draft, demands: Demands) -> tuple[Draft, Reasons]:
    """Return the draft with as little given up as makes it fit, and why, by setting."""
    reasons: Reasons = {}
    first = draft
    for each in _usual_pictures(first):
        draft = each
        if fits(draft):
            return draft, reasons
    for name, lower in (("tokens", _fewer_tokens), ("seqs", _fewer_seqs)):
        draft = _lower_until_it_fits(draft, demands, name, lower, reasons)
    if fits(draft):
        return draft, reasons
    if draft.vllm is None:  # pictures and context are weighed against each other
        return replace(draft, pictures=first.pictures), reasons
    for spare, given_up in _without_extras(draft, demands):
        if fits(spare):
            return spare, reasons | given_up
    return draft, reasons


def _usual_pictures(draft: Draft) -> Iterator[Draft]:
    """Yield the draft, then such with smaller pictures, down to those people usually send."""
    for each in with_smaller_pictures(draft):
        if each is draft or (each.pictures and each.pictures.largest_tokens >= _USUAL_PICTURE):
            yield each


def can_fit(draft: Draft, demands: Demands) -> bool:
    """Say whether `relax` and a shorter planned context would make a draft fit: at once."""
    step = draft.step
    seqs = step.max_num_seqs
    if demands.max_num_seqs is None:
        seqs = min(seqs, _least_seqs(demands))
    tokens = step.max_num_batched_tokens
    if demands.max_num_batched_tokens is None:
        tokens = min(tokens, max(_LEAST_TOKENS, seqs))
    step = replace(step, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    lowest = replace(smallest_pictures(draft), step=step)
    if fits(least(lowest, demands)):
        return True
    if draft.vllm is None:
        return False
    spares = [spare for spare, _ in _without_extras(lowest, demands)]
    return bool(spares) and fits(spares[-1])


def least(draft: Draft, demands: Demands) -> Draft:
    """Return what must fit at the least: a planned context may be as short as is sensible."""
    if demands.max_model_len is not None:
        return draft
    return draft.with_context(min(draft.step.max_model_len, SHORTEST_PLANNED_CONTEXT))


def _lower_until_it_fits(
    draft: Draft,
    demands: Demands,
    name: str,
    lower: Callable[[Draft, Demands], Draft | None],
    reasons: Reasons,
) -> Draft:
    first = draft
    while not fits(draft) and (lowered := lower(draft, demands)) is not None:
        draft = lowered
    if draft is not first:
        saved = format_bytes(first.fixed_bytes() - draft.fixed_bytes())
        before = getattr(first.step, _FIELDS[name])
        reasons[name] = f"lowered from {before:,}, which frees {saved} for KV"
    return draft


_FIELDS = {"tokens": "max_num_batched_tokens", "seqs": "max_num_seqs"}


def _fewer_tokens(draft: Draft, demands: Demands) -> Draft | None:
    step = draft.step
    tokens = max(step.max_num_batched_tokens // 2, _LEAST_TOKENS, step.max_num_seqs)
    if demands.max_num_batched_tokens is not None or tokens >= step.max_num_batched_tokens:
        return None
    return replace(draft, step=replace(step, max_num_batched_tokens=tokens))


def _least_seqs(demands: Demands) -> int:
    is_asked_for = demands.max_model_len is not None or demands.longest_context
    return _LEAST_SEQS if is_asked_for else _LEAST_USUAL_SEQS


def _fewer_seqs(draft: Draft, demands: Demands) -> Draft | None:
    seqs = max(draft.step.max_num_seqs // 2, _least_seqs(demands))
    if demands.max_num_seqs is not None or seqs >= draft.step.max_num_seqs:
        return None
    return replace(draft, step=replace(draft.step, max_num_seqs=seqs))


def _without_extras(draft: Draft, demands: Demands) -> Iterator[tuple[Draft, Reasons]]:
    """Yield drafts that give up more and more."""
    flags, given_up = draft.vllm_flags, Reasons()
    tower = draft.model.tower
    tokens = tower.largest_image_tokens // 2 if tower and tower.kind != "pixtral" else 0
    if demands.mm_processor_kwargs or demands.limit_mm_per_prompt:
        tokens = 0
    while tower and tokens >= _LEAST_PICTURE_TOKENS:
        pixels = tokens * tower.patch_size**2 * tower.merge
        flags = replace(flags, max_pixels=pixels, limit_mm_per_prompt={"video": 0})
        given_up["pictures"] = (
            f"pictures of at most {tokens:,} tokens and no video: larger ones leave no room for "
            f"{draft.step.max_model_len:,} tokens of context"
        )
        yield replace(draft, vllm_flags=flags), dict(given_up)
        tokens //= 2
    if not demands.enforce_eager:
        given_up["eager"] = "CUDA graphs would take the memory that the context needs"
        yield replace(draft, vllm_flags=replace(flags, enforce_eager=True)), dict(given_up)
