"""How much host memory to keep for blocks of sequences that must make room.

Called by `plan`. On a GPU it is memory that the device does not have; on a CPU it would be taken
from the KV cache itself, so none is planned there.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.planning.choices import DEMANDED, Profile
from qwen_engine.planning.demands import Demands
from qwen_engine.planning.device import Device
from qwen_engine.planning.errors import InvalidDemandError
from qwen_engine.planning.ledger import CPU_RUNTIME_BYTES, LedgerLine
from qwen_engine.planning.quantities import GIB, format_bytes

_HOST_SHARE = 4  # a planned swap space is at most a quarter of the host's memory


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """A swap space of whole blocks, and why it has that size."""

    gib: float  # as the flag has it
    num_blocks: int
    num_bytes: int
    reason: str


def choose_swap_space(
    profile: Profile, device: Device, demands: Demands, *, block_bytes: int
) -> SwapSpace:
    """Return the swap space.

    Raises:
        InvalidDemandError: more is demanded than the host has beside the process itself.
    """
    gib, reason = _choose(profile, device, demands)
    num_blocks = int(gib * GIB) // block_bytes
    return SwapSpace(gib, num_blocks, num_blocks * block_bytes, reason)


def _choose(profile: Profile, device: Device, demands: Demands) -> tuple[float, str]:
    host = device.host_memory_bytes
    if demands.swap_space is not None:
        _check(demands.swap_space, host)
        return demands.swap_space, DEMANDED
    if device.kind == "cpu":
        return 0, "on a CPU it would take from the KV cache, which serves better"
    if host is None:
        return 0, "nothing says how much memory the host has"
    most = host // _HOST_SHARE // GIB
    if most < profile.swap_gib:
        return most, f"a quarter of the host's {format_bytes(host)}, in whole GiB"
    return profile.swap_gib, f"usual on {profile.name}"


def _check(gib: float, host: int | None) -> None:
    if host is not None and int(gib * GIB) + CPU_RUNTIME_BYTES > host:
        raise InvalidDemandError(
            "swap_space",
            gib,
            f"the host gives this process {format_bytes(host)}, of which it needs "
            f"{format_bytes(CPU_RUNTIME_BYTES)} itself",
        )


def swap_line(swap: SwapSpace, block_bytes: int) -> LedgerLine:
    """Return the swap space's bytes."""
    how = f"{swap.num_blocks:,} blocks × {format_bytes(block_bytes)}"
    return LedgerLine("swap", swap.num_bytes, how)


def host_ledger(device: Device, swap: SwapSpace, block_bytes: int) -> tuple[LedgerLine, ...]:
    """Return what a process beside a GPU takes of the host; a CPU's ledger has it all."""
    if device.kind == "cpu":
        return ()
    runtime = LedgerLine("host-runtime", CPU_RUNTIME_BYTES, "Python, torch and their libraries")
    return runtime, swap_line(swap, block_bytes)
