"""make_plan: model, device and demands in; every engine setting and its ledger out. No I/O.

Used by the operator, by `qwen-engine plan` and by an engine that tunes itself to its machine, so
that all three say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qwen_engine.planning import choices
from qwen_engine.planning.choices import Choice, Profile
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.fit import (
    HIGHEST_UTILIZATION,
    Draft,
    budget_bytes,
    fits,
    kv_budget_bytes,
    largest_context,
    num_blocks,
    useful_blocks,
)
from qwen_engine.planning.ledger import (
    LedgerLine,
    StepSize,
    activations_line,
    block_bytes,
    kv_line,
    runtime_line,
    weights_line,
)
from qwen_engine.planning.quantities import format_bytes, round_down
from qwen_engine.planning.refusal import refuse
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.swap import SwapSpace, choose_swap_space, host_ledger, swap_line
from qwen_engine.planning.weights import weight_bytes

SHORTEST_PLANNED_CONTEXT = 512  # tokens; below this a chat has no room to answer
_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine flag, its value and why."""

    flag: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Every setting of one engine on one device, and the bytes behind them.

    The ledger's lines add up to the device's memory exactly.
    """

    model: ModelShape
    device: Device
    dtype: DTypeName
    block_size: int
    num_blocks: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    num_cpu_blocks: int  # of swap space
    ledger: tuple[LedgerLine, ...]
    host_ledger: tuple[LedgerLine, ...]  # beside a GPU
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """Tokens that the block pool holds."""
        return self.num_blocks * self.block_size

    @property
    def load_bytes(self) -> int:
        """Bytes of weights read at start-up."""
        return weight_bytes(replace(self.model, int8_weights=False), self.dtype)

    def args(self) -> list[str]:
        """Return the planned settings as engine arguments, in a stable order."""
        words: list[str] = []
        for setting in self.settings:
            if setting.value == "true":
                words.append(setting.flag)
            else:
                words += [setting.flag, setting.value]
        return words


def make_plan(model: ModelShape, device: Device, demands: Demands) -> Plan:
    """Choose every setting for a model on a device.

    Raises:
        DoesNotFitError: one request of the demanded (or the shortest sensible) length has no room.
        InvalidDemandError: a demand cannot be met whatever the memory.
    """
    model, profile = demands.serve(model), choices.profile_of(device)
    dtype = choices.choose_dtype(model, device, demands)
    block_size = choices.choose_block_size(profile, demands)
    seqs = choices.choose_max_num_seqs(profile, demands)
    tokens = choices.choose_batched_tokens(profile, demands, max_num_seqs=seqs.value)
    context = choices.choose_context(profile, model, demands)
    utilization = choices.choose_utilization(profile, demands)
    swap = choose_swap_space(
        profile, device, demands, block_bytes=block_bytes(model, dtype.value, block_size.value)
    )
    draft = Draft(
        model, device, dtype.value, block_size.value, utilization.value,
        StepSize(tokens.value, seqs.value, context.value), demands.num_gpu_blocks_override,
        swap.num_bytes if device.kind == "cpu" else 0,
    )  # fmt: skip
    draft, utilization = _raise_utilization(draft, utilization, demands)
    draft, context = _shorten_context(draft, context, demands, profile)
    if not fits(draft):
        refuse(_least(draft, demands), demands)
    settings = (
        Setting("--dtype", dtype.value, dtype.reason),
        Setting("--max-model-len", str(context.value), context.reason),
        Setting("--block-size", str(block_size.value), block_size.reason),
        Setting("--gpu-memory-utilization", f"{utilization.value:g}", utilization.reason),
        Setting("--max-num-batched-tokens", str(tokens.value), tokens.reason),
        Setting("--max-num-seqs", str(seqs.value), seqs.reason),
        Setting("--swap-space", f"{swap.gib:g}", swap.reason),
        _prefix_caching(demands),
        *_eight_bit(demands),
        *_override(demands),
        *([Setting("--device", "cpu", "no GPU was asked for")] if device.kind == "cpu" else []),
    )
    return _plan(draft, demands, settings, swap)


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
    """Shorten a planned context to what fits."""
    if demands.max_model_len is not None or fits(draft):
        return draft, choice
    length = round_down(largest_context(draft), _CONTEXT_STEP)
    if length < SHORTEST_PLANNED_CONTEXT:
        return draft, choice
    reason = f"the most that fits; {choice.value:,} are usual on {profile.name}"
    return draft.with_context(length), Choice(length, reason)


def _least(draft: Draft, demands: Demands) -> Draft:
    """Return what must fit at the least: a planned context may be as short as is sensible."""
    if demands.max_model_len is not None:
        return draft
    return draft.with_context(min(draft.step.max_model_len, SHORTEST_PLANNED_CONTEXT))


def _prefix_caching(demands: Demands) -> Setting:
    if demands.enable_prefix_caching:
        return Setting("--enable-prefix-caching", "true", "a shared prefix is computed once")
    return Setting("--no-enable-prefix-caching", "true", choices.DEMANDED)


def _eight_bit(demands: Demands) -> list[Setting]:
    """Return what is demanded beside the model's own type."""
    settings = []
    if demands.quantization != "none":
        settings.append(Setting("--quantization", demands.quantization, choices.DEMANDED))
    if demands.kv_cache_dtype != "auto":
        settings.append(Setting("--kv-cache-dtype", demands.kv_cache_dtype, choices.DEMANDED))
    return settings


def _override(demands: Demands) -> list[Setting]:
    override = demands.num_gpu_blocks_override
    if override is None:
        return []
    return [Setting("--num-gpu-blocks-override", str(override), choices.DEMANDED)]


def _plan(draft: Draft, demands: Demands, settings: tuple[Setting, ...], swap: SwapSpace) -> Plan:
    blocks = num_blocks(draft)
    each = block_bytes(draft.model, draft.dtype, draft.block_size)
    lines = [
        runtime_line(draft.device, draft.model),
        weights_line(draft.model, draft.dtype),
        activations_line(draft.model, draft.dtype, draft.step),
        kv_line(draft.model, draft.dtype, block_size=draft.block_size, num_blocks=blocks),
    ]
    if draft.swap_bytes:
        lines.append(swap_line(swap, each))
    budget, total = budget_bytes(draft), draft.device.memory_bytes
    lines.append(_unused_line(draft, budget - sum(line.num_bytes for line in lines), blocks))
    share = f"{total - budget:,} B outside utilisation {draft.utilization:g}"
    lines.append(LedgerLine("reserve", total - budget, share))
    return Plan(
        model=draft.model,
        device=draft.device,
        dtype=draft.dtype,
        block_size=draft.block_size,
        num_blocks=blocks,
        block_bytes=each,
        max_model_len=draft.step.max_model_len,
        max_num_seqs=draft.step.max_num_seqs,
        max_num_batched_tokens=draft.step.max_num_batched_tokens,
        gpu_memory_utilization=draft.utilization,
        enable_prefix_caching=demands.enable_prefix_caching,
        num_cpu_blocks=swap.num_blocks,
        ledger=tuple(lines),
        host_ledger=host_ledger(draft.device, swap, each),
        settings=settings,
        warnings=_warnings(draft),
    )


def _unused_line(draft: Draft, num_bytes: int, blocks: int) -> LedgerLine:
    if draft.num_blocks_override is not None:
        how = "the number of blocks was demanded"
    elif draft.device.kind == "cpu" and blocks == useful_blocks(draft):
        how = f"{draft.step.max_num_seqs} sequences of full length need no more blocks"
    else:
        how = "less than one block"
    return LedgerLine("unused", num_bytes, how)


def _warnings(draft: Draft) -> tuple[str, ...]:
    if draft.model.traits.skipped_prefix:
        return (
            "this version answers about text only: the vision tower is neither loaded nor planned",
        )
    return ()
