"""What vLLM is told, and what it makes of what it is not told: one engine step's limits.

Called by `vllm` with the user's flags; the defaults are those of the release (EngineArgs in
vllm/engine/arg_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qwen_engine.planning.device import Device
from qwen_engine.planning.quantities import GIB
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.vllm_constants import CONSTANTS, VllmConstants
from qwen_engine.planning.vllm_version import NEWEST, VllmVersion

_LARGE_CARD_BYTES = 70 * GIB
_V0_CHUNKS_FROM = 32_768  # tokens; longer contexts are chunked by default, for text


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFlags:
    """The flags that bytes depend on; None means the release's default."""

    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_chunked_prefill: bool | None = None
    enforce_eager: bool = False
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    skip_mm_profiling: bool = False
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)
    max_pixels: int | None = None


NO_FLAGS = VllmFlags()


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmStep:
    """One step's limits, resolved.

    Attributes:
        samples_whole_batch: the profile run samples for every sequence.
    """

    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    samples_whole_batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmStart:
    """A start of vLLM: a model, a card, what it is told, and the release."""

    model: ModelShape
    device: Device
    dtype: DTypeName
    flags: VllmFlags = NO_FLAGS
    version: VllmVersion = NEWEST
    constants: VllmConstants = CONSTANTS


def resolve_step(start: VllmStart) -> VllmStep:
    """Return the limits that the release takes for these flags on this card."""
    flags, version = start.flags, start.version
    length = flags.max_model_len or start.model.max_len
    chunked, large = _is_chunked(start, length), _has_large_defaults(start)
    seqs = flags.max_num_seqs or (1024 if large or version.has_large_defaults_everywhere else 256)
    if flags.max_num_batched_tokens is not None:
        tokens = flags.max_num_batched_tokens
    elif version.is_v0:
        tokens = 2048 if chunked else max(length, 2048)
    else:
        tokens = 8192 if large else 2048
    told = flags.max_num_batched_tokens is not None
    return VllmStep(
        utilization=flags.gpu_memory_utilization or version.default_utilization,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(tokens, seqs),
        samples_whole_batch=told or not (version.is_v0 and chunked),
    )


def _is_chunked(start: VllmStart, length: int) -> bool:
    if not start.version.is_v0:
        return True
    if start.flags.enable_chunked_prefill is not None:
        return start.flags.enable_chunked_prefill
    return start.model.tower is None and length > _V0_CHUNKS_FROM


def _has_large_defaults(start: VllmStart) -> bool:
    """The class is told by NVML's size and the name; unified memory has no size there."""
    device = start.device
    is_large = device.memory_bytes >= _LARGE_CARD_BYTES and "A100" not in device.product
    return is_large and not device.unified and not start.version.is_v0
