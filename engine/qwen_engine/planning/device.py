"""Device facts: what memory a plan may use, and where that figure comes from.

Called by the operator with node labels or `spec.gpu`, by the command line with a product name, and
by the engine with what it finds on its own machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import yaml

from qwen_engine.planning.errors import UnknownGpuError
from qwen_engine.planning.quantities import MIB

_LABEL = "nvidia.com/gpu."
# gpu-feature-discovery wrote bytes in old releases (its issue 26); no card has 10^7 MiB.
_LARGEST_MIB = 10**7
_MIG_SUFFIX = re.compile(r"-MIG-\d+g\.\d+gb(\.me)?$")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or the CPU with the memory that a process may use.

    Attributes:
        memory_bytes: of one GPU as its driver reports it; on a CPU the memory limit.
        source: where the figures come from, in words for the user.
        consumer: the card may also draw a desktop.
        host_memory_bytes: what a process beside a GPU may use of the host; None if nobody said.
        dedicated: nobody else counts on this memory (a pod's limit is; a laptop's RAM is not).
    """

    kind: Literal["gpu", "cpu"]
    product: str
    memory_bytes: int
    source: str
    capability: tuple[int, int] | None = None
    consumer: bool = False
    dedicated: bool = True
    host_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """A row of the catalogue. Memory in MiB, as the driver reports it."""

    memory_mib: int
    capability: tuple[int, int]
    consumer: bool


@cache
def gpu_products() -> Mapping[str, GpuProduct]:
    """Return the catalogue, keyed by product in gpu-feature-discovery's spelling."""
    text = resources.files("qwen_engine.planning").joinpath("data/gpus.yaml").read_text("utf-8")
    rows = yaml.safe_load(text)
    return {name: _parse_row(row) for name, row in rows.items()}


def _parse_row(row: Mapping[str, object]) -> GpuProduct:
    major, minor = str(row["capability"]).split(".")
    return GpuProduct(int(str(row["memoryMiB"])), (int(major), int(minor)), bool(row["consumer"]))


def cpu_device(memory_bytes: int, *, source: str, dedicated: bool = True) -> Device:
    """Return the CPU as a device with a memory limit in bytes."""
    return Device("cpu", "CPU", memory_bytes, source, dedicated=dedicated)


def gpu_from_spec(
    product: str | None, memory_mib: int | None = None, *, source: str = "given by the user"
) -> Device:
    """Return a GPU named by the user; a given memory size wins over the catalogue's.

    Raises:
        UnknownGpuError: no memory size is given and the catalogue lacks the product.
    """
    row = gpu_products().get(product or "")
    if memory_mib is None and row is None:
        raise UnknownGpuError(
            f"GPU product {product!r} is not in the catalogue; also give its memory "
            "(spec.gpu.memoryMiB, or --gpu-memory-mib), as `nvidia-smi` prints it in MiB"
        )
    return _gpu(product or "unnamed GPU", memory_mib, row, source)


def gpu_from_labels(labels: Mapping[str, str], *, node: str) -> Device:
    """Return the GPU that gpu-feature-discovery's labels on a node describe.

    Raises:
        UnknownGpuError: the labels do not say how much memory one requested GPU has.
    """
    label = labels.get(f"{_LABEL}product", "")
    if label.endswith("-MIG-INVALID"):
        raise UnknownGpuError(
            f"node {node}: {_LABEL}product={label}: its MIG layout is not uniform, so "
            "nvidia.com/gpu cannot be planned; make it uniform or use another node"
        )
    product = label.removesuffix("-SHARED")
    row = gpu_products().get(_MIG_SUFFIX.sub("", product))
    memory_mib = _label_mib(labels, node)
    if memory_mib is None and (row is None or _MIG_SUFFIX.search(product)):
        raise UnknownGpuError(
            f"node {node}: label {_LABEL}memory is missing and product {product or 'unknown'!r} is "
            "not in the catalogue; run gpu-feature-discovery on the node, or set spec.gpu.memoryMiB"
        )
    memory = f"{_LABEL}memory" if memory_mib is not None else f"{_LABEL}product and the catalogue"
    share = _share(labels, label, node)
    whole = memory_mib if memory_mib is not None else (row.memory_mib if row else 0)
    source = f"{memory} of node {node}" + (f", one of {share} shares" if share > 1 else "")
    found = _gpu(product or "unnamed GPU", whole // share, row, source)
    return found if (known := _label_capability(labels)) is None else _with(found, known)


def _gpu(product: str, memory_mib: int | None, row: GpuProduct | None, source: str) -> Device:
    mib = memory_mib if memory_mib is not None else (row.memory_mib if row else 0)
    consumer = row.consumer if row else "GeForce" in product or "TITAN" in product
    capability = row.capability if row else None
    return Device("gpu", product, mib * MIB, source, capability=capability, consumer=consumer)


def _with(device: Device, capability: tuple[int, int]) -> Device:
    return Device(
        device.kind, device.product, device.memory_bytes, device.source,
        capability=capability, consumer=device.consumer,
    )  # fmt: skip


def _label_mib(labels: Mapping[str, str], node: str) -> int | None:
    text = labels.get(f"{_LABEL}memory")
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UnknownGpuError(f"node {node}: label {_LABEL}memory={text!r} is no number of MiB")
    value = int(text)
    return value // MIB if value > _LARGEST_MIB else value


def _label_capability(labels: Mapping[str, str]) -> tuple[int, int] | None:
    major = labels.get(f"{_LABEL}compute.major", "")
    minor = labels.get(f"{_LABEL}compute.minor", "")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _share(labels: Mapping[str, str], product: str, node: str) -> int:
    """Return how many pods share one card. Under time slicing the memory label is the card's."""
    replicas = labels.get(f"{_LABEL}replicas", "1")
    share = int(replicas) if replicas.isdecimal() and int(replicas) > 0 else 1
    if product.endswith("-SHARED") and share == 1:
        raise UnknownGpuError(
            f"node {node}: {product} is shared, but label {_LABEL}replicas={replicas} does not say "
            "among how many; set spec.gpu.memoryMiB to the part this model may use"
        )
    return share
