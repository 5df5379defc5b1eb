"""make_plan: model, device and demands in; every engine setting and its ledger out. No I/O.

Used by the operator, by `qwen-engine plan` and by an engine that tunes itself to its machine, so
that all three say the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qwen_engine.planning import choices
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.draft import Draft
from qwen_engine.planning.fit import fits, num_blocks, useful_blocks
from qwen_engine.planning.ledger import LedgerLine
from qwen_engine.planning.picture_reasons import cache_reason, limit_reason, size_reason
from qwen_engine.planning.pictures import picture_limits, processor_kwargs
from qwen_engine.planning.refusal import refuse
from qwen_engine.planning.relax import least
from qwen_engine.planning.settle import Settled, settle
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.swap import host_ledger, swap_line
from qwen_engine.planning.weights import tower_bytes, weight_bytes


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
    engine: str = "qwen"
    tensor_parallel_size: int = 1  # the ledger is that of one of so many GPUs
    encoder_cache_tokens: int = 0  # of our own engine; 0: text only
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the block pool holds."""
        return self.num_blocks * self.block_size

    @property
    def load_bytes(self) -> int:
        """Bytes of weights read at start-up, by all GPUs together."""
        if self.engine == "qwen":
            tower = tower_bytes(self.model, self.dtype) if self.encoder_cache_tokens else 0
            return weight_bytes(replace(self.model, int8_weights=False), self.dtype) + tower
        read = [x.num_bytes for x in self.ledger if x.component in ("weights", "vision-tower")]
        return sum(read) * self.tensor_parallel_size

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
        UnsupportedModelError: the engine cannot run the model.
    """
    settled = settle(model, device, demands)
    if not fits(settled.draft):
        refuse(least(settled.draft, demands), demands, asked=model)
    return _plan(settled, demands)


def _settings(settled: Settled, demands: Demands) -> tuple[Setting, ...]:
    found, draft = settled, settled.draft
    own = draft.vllm is None
    on_cpu = Setting("--device", "cpu", "no GPU was asked for")
    return (
        Setting("--dtype", found.dtype.value, found.dtype.reason),
        Setting("--max-model-len", str(found.context.value), found.context.reason),
        Setting("--block-size", str(found.block_size.value), found.block_size.reason),
        Setting(
            "--gpu-memory-utilization", f"{found.utilization.value:g}", found.utilization.reason
        ),
        Setting("--max-num-batched-tokens", str(found.tokens.value), found.tokens.reason),
        Setting("--max-num-seqs", str(found.seqs.value), found.seqs.reason),
        *([Setting("--swap-space", f"{found.swap.gib:g}", found.swap.reason)] if own else []),
        _prefix_caching(demands),
        *_eight_bit(draft, demands),
        *_override(demands),
        *_vllm_only(settled, demands),
        *_picture_settings(draft, demands),
        *([on_cpu] if draft.device.kind == "cpu" else []),
    )


def _vllm_only(settled: Settled, demands: Demands) -> list[Setting]:
    if settled.draft.vllm is None:
        return []
    flags = settled.draft.vllm_flags
    size, reasons, found = flags.tensor_parallel_size, settled.reasons, []
    if size > 1:
        asked = demands.tensor_parallel_size is not None
        reason = choices.DEMANDED if asked else f"{size} GPUs are the fewest that it fits on"
        found.append(Setting("--tensor-parallel-size", str(size), reason))
    pictures = reasons.get("pictures", choices.DEMANDED)
    if kwargs := demands.mm_processor_kwargs or (
        {"max_pixels": flags.max_pixels} if flags.max_pixels is not None else None
    ):
        found.append(Setting("--mm-processor-kwargs", json.dumps(dict(kwargs)), pictures))
    if flags.limit_mm_per_prompt:
        limits = json.dumps(dict(flags.limit_mm_per_prompt))
        found.append(Setting("--limit-mm-per-prompt", limits, pictures))
    if flags.enforce_eager:
        found.append(Setting("--enforce-eager", "true", reasons.get("eager", choices.DEMANDED)))
    return found


def _picture_settings(draft: Draft, demands: Demands) -> list[Setting]:
    vision, pictures = draft.model.vision, draft.pictures
    if draft.vllm is not None or vision is None:
        return []
    if pictures is None:
        limits = json.dumps({"image": 0, "video": 0})
        reason = f"{choices.DEMANDED}: text only, without the vision tower"
        return [Setting("--limit-mm-per-prompt", limits, reason)]
    kept = draft.encoder_cache_tokens
    limits = json.dumps(picture_limits(pictures, kept_tokens=kept))
    sizes = json.dumps(processor_kwargs(vision, pictures, demands))
    return [
        Setting("--mm-processor-kwargs", sizes, size_reason(pictures)),
        Setting("--limit-mm-per-prompt", limits, limit_reason(pictures, kept_tokens=kept)),
        Setting("--encoder-cache-tokens", str(kept), cache_reason(pictures, kept_tokens=kept)),
    ]


def _prefix_caching(demands: Demands) -> Setting:
    if demands.enable_prefix_caching:
        return Setting("--enable-prefix-caching", "true", "a shared prefix is computed once")
    return Setting("--no-enable-prefix-caching", "true", choices.DEMANDED)


def _eight_bit(draft: Draft, demands: Demands) -> list[Setting]:
    """Return what is demanded beside the model's own type."""
    settings = []
    if demands.quantization != "none":
        settings.append(Setting("--quantization", demands.quantization, choices.DEMANDED))
    if demands.kv_cache_dtype != "auto":
        own = draft.vllm is None
        name = demands.kv_cache_dtype if own else draft.vllm_flags.kv_cache_dtype
        settings.append(Setting("--kv-cache-dtype", name, choices.DEMANDED))
    return settings


def _override(demands: Demands) -> list[Setting]:
    override = demands.num_gpu_blocks_override
    if override is None:
        return []
    return [Setting("--num-gpu-blocks-override", str(override), choices.DEMANDED)]


def _plan(settled: Settled, demands: Demands) -> Plan:
    draft, swap = settled.draft, settled.swap
    blocks, each = num_blocks(draft), draft.block_bytes
    lines = draft.fixed_lines()
    size = draft.vllm_flags.tensor_parallel_size
    lines.append(draft.kv_line(blocks))
    if draft.swap_bytes:
        lines.append(swap_line(swap, each))
    budget, total = draft.budget_bytes, draft.device.memory_bytes
    lines.append(_unused_line(draft, budget - sum(line.num_bytes for line in lines), blocks))
    lines.append(LedgerLine("reserve", total - budget, _reserve(draft)))
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
        num_cpu_blocks=swap.num_blocks if draft.vllm is None else 0,
        ledger=tuple(lines),
        host_ledger=host_ledger(draft.device, swap, each) if draft.vllm is None else (),
        settings=_settings(settled, demands),
        warnings=settled.notes,
        engine=demands.engine,
        tensor_parallel_size=size,
        **_picture_fields(draft, demands),
    )


def _picture_fields(draft: Draft, demands: Demands) -> dict[str, Any]:
    vision, pictures, kept = draft.model.vision, draft.pictures, draft.encoder_cache_tokens
    if vision is None or pictures is None:
        return {}
    return {
        "encoder_cache_tokens": kept,
        "limit_mm_per_prompt": picture_limits(pictures, kept_tokens=kept),
        "mm_processor_kwargs": processor_kwargs(vision, pictures, demands),
    }


def _reserve(draft: Draft) -> str:
    total, budget = draft.device.memory_bytes, draft.budget_bytes
    if draft.vllm is None:
        return f"{total - budget:,} B outside utilisation {draft.utilization:g}"
    hidden = total - draft.device.visible_bytes
    return (
        f"{total - budget - hidden:,} B outside utilisation {draft.utilization:g}, and {hidden:,} "
        "B that the driver keeps for itself"
    )


def _unused_line(draft: Draft, num_bytes: int, blocks: int) -> LedgerLine:
    if draft.num_blocks_override is not None:
        how = "the number of blocks was demanded"
    elif draft.device.kind == "cpu" and blocks == useful_blocks(draft):
        how = f"{draft.step.max_num_seqs} sequences of full length need no more blocks"
    else:
        how = "less than one block"
    return LedgerLine("unused", num_bytes, how)
