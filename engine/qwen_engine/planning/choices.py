"""Every setting a plan chooses, each with its reason in words and figures.

A demanded value is taken as it is. The profiles by device are what operators of these cards run by
hand; the ledger then decides whether they can be true (plan.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from qwen_engine.planning.demands import BLOCK_SIZES, Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import InvalidDemandError
from qwen_engine.planning.quantities import GIB
from qwen_engine.planning.shape import DTypeName, ModelShape

DEMANDED = "as demanded"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Profile:
    """What suits a class of devices before the ledger is asked."""

    name: str
    utilization: float
    utilization_reason: str
    largest_block: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    swap_gib: int = 0  # host memory for swapped blocks


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value and why it was taken."""

    value: T
    reason: str


_CPU = Profile("a CPU", 0.9, "the memory limit is this process's own", 32, 1024, 16, 8192)
_SHARED_CPU = Profile("a CPU", 0.5, "other programs use this memory too", 32, 1024, 16, 8192)
_SMALL_CARD = Profile("a 12 GB consumer card", 0.5, "the card may also draw a desktop",
                      16, 8192, 64, 8192, swap_gib=4)  # fmt: skip
_CONSUMER = Profile("a 24 GB consumer card", 0.85, "leaves room for a desktop's buffers",
                    32, 12288, 128, 32768, swap_gib=4)  # fmt: skip
_WORKSTATION = Profile("a 24–48 GB data-centre card", 0.9, "the card serves nothing else",
                       32, 8192, 128, 32768, swap_gib=4)  # fmt: skip
_DATA_CENTRE = Profile("an 80 GB data-centre card", 0.9, "the card serves nothing else",
                       64, 16384, 256, 32768, swap_gib=16)  # fmt: skip


def profile_of(device: Device) -> Profile:
    """Return the profile of a device's class."""
    if device.kind == "cpu":
        return _CPU if device.dedicated else _SHARED_CPU
    if device.consumer:
        return _SMALL_CARD if device.memory_bytes < 14 * GIB else _CONSUMER
    return _DATA_CENTRE if device.memory_bytes > 70 * GIB else _WORKSTATION


def choose_dtype(model: ModelShape, device: Device, demands: Demands) -> Choice[DTypeName]:
    """Return the data type of weights and KV.

    Raises:
        InvalidDemandError: bfloat16 is demanded of a GPU that lacks it.
    """
    lacks_bf16 = device.capability is not None and device.capability < (8, 0)
    if demands.dtype != "auto":
        if demands.dtype == "bfloat16" and lacks_bf16:
            raise InvalidDemandError(
                "dtype", "bfloat16", f"{device.product} has no bfloat16; use float16"
            )
        return Choice(cast(DTypeName, demands.dtype), DEMANDED)
    if model.dtype == "bfloat16" and lacks_bf16:
        return Choice("float16", f"{device.product} has no bfloat16, the checkpoint's type")
    return Choice(model.dtype, "the checkpoint's own type")


def choose_block_size(profile: Profile, demands: Demands) -> Choice[int]:
    """Return the largest block of at most half the mean request that suits the device."""
    if demands.block_size is not None:
        return Choice(demands.block_size, DEMANDED)
    half = demands.mean_request_tokens // 2
    value = max((s for s in BLOCK_SIZES if s <= min(half, profile.largest_block)), default=16)
    return Choice(
        value,
        f"largest of {'/'.join(map(str, BLOCK_SIZES))} that is at most half the mean request of "
        f"{demands.mean_request_tokens} tokens and at most {profile.largest_block} on "
        f"{profile.name}",
    )


def choose_utilization(profile: Profile, demands: Demands) -> Choice[float]:
    """Return the share of device memory the engine may take."""
    if demands.gpu_memory_utilization is not None:
        return Choice(demands.gpu_memory_utilization, DEMANDED)
    return Choice(profile.utilization, profile.utilization_reason)


def choose_max_num_seqs(profile: Profile, demands: Demands) -> Choice[int]:
    """Return how many sequences may run in one step."""
    if demands.max_num_seqs is not None:
        return Choice(demands.max_num_seqs, DEMANDED)
    return Choice(profile.max_num_seqs, f"usual on {profile.name}")


def choose_batched_tokens(profile: Profile, demands: Demands, *, max_num_seqs: int) -> Choice[int]:
    """Return the token budget of one step."""
    if demands.max_num_batched_tokens is not None:
        return Choice(demands.max_num_batched_tokens, DEMANDED)
    value = max(profile.max_num_batched_tokens, max_num_seqs)
    return Choice(value, f"prompts are cut into steps of this size; usual on {profile.name}")


def choose_context(profile: Profile, model: ModelShape, demands: Demands) -> Choice[int]:
    """Return the context length to aim at; the ledger may shorten one that was not demanded.

    Raises:
        InvalidDemandError: the model has fewer positions.
    """
    positions = model.max_len
    if demands.max_model_len is None and demands.longest_context:
        return Choice(positions, "all positions of the model")
    if demands.max_model_len is None:
        if positions <= profile.max_model_len:
            return Choice(positions, "all positions of the model")
        return Choice(
            profile.max_model_len, f"usual on {profile.name}; the model has {positions:,}"
        )
    if demands.max_model_len > positions:
        raise InvalidDemandError(
            "max_model_len", demands.max_model_len, f"the model has only {positions:,} positions"
        )
    return Choice(demands.max_model_len, DEMANDED)
