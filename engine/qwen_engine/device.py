"""The device that a worker computes on, and how many threads it takes there.

Called by `worker`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from qwen_engine.config import EngineConfig
from qwen_engine.errors import ConfigError


def open_device(config: EngineConfig) -> torch.device:
    """Return the device; on a CPU, torch has as many threads from now on as it shall.

    Raises:
        ConfigError: there is no such device.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", config.device, "torch sees no CUDA device: use device=cpu")
    if config.device == "cpu":
        torch.set_num_threads(_choose_num_threads(config))
    return torch.device(config.device)


def _choose_num_threads(config: EngineConfig) -> int:
    """Return the threads of torch: as told, else its own choice bounded by the CPU limit.

    torch counts the cores it may run on; a container's limit is a share of their time, and with
    a thread on every core of a large node the share is spent in a burst, then all are stopped.
    """
    if config.num_threads:
        return config.num_threads
    limit = read_cpu_limit(Path("/sys/fs/cgroup"))
    if limit is None or "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, min(torch.get_num_threads(), math.ceil(limit)))


def read_cpu_limit(cgroup: Path) -> float | None:
    """Return the cores a container may use (cgroup v2's cpu.max or v1's quota); None: no limit."""
    try:
        if (cgroup / "cpu.max").exists():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None  # no cgroup file system, or one that we do not know
