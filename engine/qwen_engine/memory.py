"""What the engine really takes, under the names of the plan's ledger.

Made by `worker` once everything is loaded; read for /stats and /metrics. The operator compares
these lines with the planned ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Bytes really taken.

    Attributes:
        process_bytes: the peak since start-up, of the device's memory: on a CPU the resident set,
            on CUDA what lies outside the allocator and its reserved bytes.
        swap_bytes: of host memory; on a CPU part of process_bytes.
        rest_bytes: process_bytes when nothing runs.
        host_bytes: resident set of the process beside a GPU; 0 on a CPU.
        vision_tower_bytes: of a model that takes pictures.
        encoder_cache_bytes: the most that embeddings of pictures took; they come after the rest.
    """

    weights_bytes: int
    kv_cache_bytes: int
    process_bytes: int
    swap_bytes: int = 0
    rest_bytes: int = 0
    host_bytes: int = 0
    vision_tower_bytes: int = 0
    encoder_cache_bytes: int = 0

    def lines(self) -> dict[str, int]:
        """Return bytes by ledger component; those of one memory add up to its peak."""
        held = self.weights_bytes + self.vision_tower_bytes + self.kv_cache_bytes
        held += 0 if self.host_bytes else self.swap_bytes
        worked = self.process_bytes - self.rest_bytes - self.encoder_cache_bytes
        found = {
            "runtime": max(0, self.rest_bytes - held),
            "weights": self.weights_bytes,
            "activations": max(0, worked),
            "kv-cache": self.kv_cache_bytes,
        }
        if self.vision_tower_bytes:
            found["vision-tower"] = self.vision_tower_bytes
            found["encoder-cache"] = self.encoder_cache_bytes
        if self.host_bytes:
            found["host-runtime"] = max(0, self.host_bytes - self.swap_bytes)
        return found | ({"swap": self.swap_bytes} if self.swap_bytes else {})


class MemoryMeter:
    """Remembers what the process takes at rest, and its peak from then on."""

    def __init__(self, device: torch.device, missing_bytes: Callable[[], int] = lambda: 0) -> None:
        """Take the present as rest: everything is loaded, nothing runs.

        missing_bytes: tells what the process has for itself but has not yet touched; it counts.
        """
        self._device = device
        self._missing_bytes = missing_bytes
        self._outside_bytes = 0
        self._has_peak = True
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what loading needed
            torch.cuda.reset_peak_memory_stats(device)
            self._outside_bytes = _outside_allocator(device)
        else:
            self._has_peak = _restart_peak()
        self.rest_bytes = self._taken_now()
        self._highest = self.rest_bytes

    def grow_rest(self, num_bytes: int) -> None:
        """Count as rest what the host made later and keeps; on a GPU it is not of this memory."""
        if self._device.type == "cpu":
            self.rest_bytes += num_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was taken since the start."""
        if self._device.type == "cuda":
            return self._outside_bytes + torch.cuda.max_memory_reserved(self._device)
        now = self._taken_now()
        if self._has_peak:
            now = max(now, _status("VmHWM") + self._missing_bytes())
        self._highest = max(self._highest, now)
        return self._highest

    @property
    def host_bytes(self) -> int:
        """Resident bytes beside a GPU; 0 on a CPU, where they are the device's."""
        return _status("VmRSS") if self._device.type == "cuda" else 0

    def _taken_now(self) -> int:
        if self._device.type == "cuda":
            return self._outside_bytes + torch.cuda.memory_reserved(self._device)
        return _status("VmRSS") + self._missing_bytes()


def _outside_allocator(device: torch.device) -> int:
    """Return the card's bytes that torch does not hand out: driver, context, libraries.

    Others' processes on the same card count too: CUDA cannot tell them apart.
    """
    free, total = torch.cuda.mem_get_info(device)
    return max(0, max(total, _nvml_total(device)) - free - torch.cuda.memory_reserved(device))


def _nvml_total(device: torch.device) -> int:
    """Return the card's size as its driver has it, which is what plans divide; 0 if unknown."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # WSL2 and MIG slices lack parts of NVML
        return 0


def _restart_peak() -> bool:
    """Have the kernel forget the resident peak, which loading set; say whether it did.

    https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html
    """
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(key: str) -> int:
    """Return a size of /proc/self/status in bytes; 0 where there is no such file (not Linux)."""
    try:
        text = (_PROCESS / "status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
