"""Plans for the machine the process runs on: the appliance that tunes itself.

Called by the command line before anything is loaded. The same planner as the operator's, fed with
what NVML or the cgroup says, so that flags computed by the operator fit here too.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path

from qwen_engine.planning import (
    Demands,
    Device,
    InvalidConfigError,
    ModelShape,
    Plan,
    cpu_device,
    gpu_from_spec,
    make_plan,
    parse_model_config,
    read_model_facts,
)
from qwen_engine.planning.vision import VisionShape
from qwen_engine.vision.settings import ProcessorSettings

_LARGEST_HEADER = 10**8  # bytes; the format's own limit
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # v2, v1, as seen in a container


def plan_for_this_machine(
    model_dir: Path, *, device: str, demands: Demands, memory_bytes: int | None = None
) -> Plan:
    """Plan a model folder for `cpu`, `cuda` or `auto`, here; memory_bytes overrides the cgroup.

    Raises:
        PlanningError: the model cannot be planned, or does not fit.
    """
    return make_plan(read_shape(model_dir), local_device(device, memory_bytes), demands)


def read_shape(path: Path, *, for_any_engine: bool = False) -> ModelShape:
    """Return the shape of a model folder, or of a config.json itself.

    Args:
        for_any_engine: read also what only vLLM runs.

    Raises:
        InvalidConfigError: the file is missing, no JSON, or lacks a field.
        UnsupportedModelError: nothing here runs it.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise InvalidConfigError("file", str(file), "no such file") from error
    except (OSError, ValueError) as error:
        raise InvalidConfigError("file", str(file), f"cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise InvalidConfigError("file", str(file), "must hold an object")
    read = read_model_facts if for_any_engine else parse_model_config
    shape = read(config, model_id=path.name if path.is_dir() else path.parent.name)
    if not path.is_dir():
        return shape
    if shape.vision is not None:
        shape = replace(shape, tower=_with_bounds(shape.vision, path))
    if shape.quantization is None:
        return shape
    found = _tensor_bytes(path, shape.traits.skipped_prefix or "-")
    return replace(shape, checkpoint_bytes=found or None)


def _with_bounds(vision: VisionShape, folder: Path) -> VisionShape:
    """Return the tower with the bounds of the folder's own processor."""
    settings = ProcessorSettings.from_folder(folder)
    return replace(vision, image_pixels=settings.max_pixels, video_pixels=settings.video_max_pixels)


def _tensor_bytes(folder: Path, skipped: str) -> int:
    """Return the bytes of all tensors by the headers of the safetensors files; 0 without them."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _LARGEST_HEADER:
                return 0  # no safetensors: the loader says so better
            try:
                header = json.loads(file.read(size))
            except ValueError:
                return 0
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            total += 0 if name.startswith(skipped) else end - start
    return total


def local_device(device: str, memory_bytes: int | None = None) -> Device:
    """Return this machine's GPU or CPU as the planner sees it."""
    if device == "cuda" or (device == "auto" and _has_cuda()):
        return _local_gpu()
    if memory_bytes is not None:
        return cpu_device(memory_bytes, source="given by the user")
    total = _total_memory()
    limit, file = _cgroup_limit()
    if limit is not None and limit < total:
        return cpu_device(limit, source=f"memory limit in {file}")
    return cpu_device(total, source="this machine's memory", dedicated=False)


def _has_cuda() -> bool:
    try:  # the driver's own library: without it torch, which takes a second to import, sees none
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch

    return torch.cuda.is_available()


def _local_gpu() -> Device:
    """Return the first visible GPU; its memory is NVML's total, as on the node's label."""
    import pynvml
    import torch

    properties = torch.cuda.get_device_properties(0)
    product = "-".join(properties.name.split())  # gpu-feature-discovery's spelling
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        memory_bytes, source = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), "NVML"
    except pynvml.NVMLError:  # WSL2 and MIG slices lack parts of NVML
        memory_bytes, source = int(properties.total_memory), "CUDA"
    found = gpu_from_spec(product, memory_bytes // 2**20, source=f"{source} on this machine")
    limit, _ = _cgroup_limit()
    return replace(found, host_memory_bytes=min(limit or _total_memory(), _total_memory()))


def _cgroup_limit(root: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, str]:
    for name in _CGROUP_LIMITS:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text), str(root / name)
    return None, ""


def _total_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemTotal")
