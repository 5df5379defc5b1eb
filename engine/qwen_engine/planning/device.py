"""Device facts: what memory a plan may use, and where that figure comes from.

Called by the operator with `spec.gpu` and with what nodes' labels say, by the command line with a
product name, and by the engine with what it finds on its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwen_engine.planning.errors import UnknownGpuError
from qwen_engine.planning.gpus import GpuProduct, find_product, part_mib, product_named
from qwen_engine.planning.quantities import GIB, MIB

# What lies between a card's size as nvidia-smi prints it and what CUDA reports: firmware and page
# tables. Start-up logs: 0.42-0.44 GiB at 24 GB, 0.47 at 80 GB (H100), 0.65 at 141 GB (H200). Cards
# of capability 8.0 also have spare rows of HBM in the printed size: 0.6 at 40 GB, 0.7-0.8 at 80.
_RESERVE_BYTES, _RESERVE_SHARE, _SPARE_ROWS_SHARE = 0.40 * GIB, 0.0015, 0.003


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or the CPU with the memory that a process may use.

    Attributes:
        memory_bytes: of one GPU as its driver reports it; on a CPU the memory limit.
        source: where the figures come from, in words for the user.
        consumer: the card may also draw a desktop.
        host_memory_bytes: what a process beside a GPU may use of the host; None if nobody said.
        dedicated: nobody else counts on this memory (a pod's limit is; a laptop's RAM is not).
        cuda_memory_bytes: what CUDA reports of one GPU, where that is known. Under WSL2 it is all
            that the driver reports.
        bandwidth_gbs: of its memory, in GB/s; None if unknown.
        unified: the memory is the host's; the driver reports no size of its own.
        count: GPUs that one pod may have.
    """

    kind: Literal["gpu", "cpu"]
    product: str
    memory_bytes: int
    source: str
    capability: tuple[int, int] | None = None
    consumer: bool = False
    dedicated: bool = True
    host_memory_bytes: int | None = None
    cuda_memory_bytes: int | None = None
    bandwidth_gbs: int | None = None
    has_nvlink: bool = False
    unified: bool = False
    count: int = 1

    @property
    def is_amd(self) -> bool:
        """The platform is ROCm."""
        return any(word in self.product for word in ("AMD", "Radeon", "Instinct"))

    @property
    def visible_bytes(self) -> int:
        """What CUDA reports: known, or the driver's figure less its reserve."""
        if self.cuda_memory_bytes is not None:
            return min(self.cuda_memory_bytes, self.memory_bytes)
        if self.kind == "cpu" or self.unified:
            return self.memory_bytes
        share = _RESERVE_SHARE + (_SPARE_ROWS_SHARE if self.capability == (8, 0) else 0)
        return max(0, int(self.memory_bytes * (1 - share) - _RESERVE_BYTES))

    def memory_for(self, visible_bytes: int) -> int:
        """Return the size, as a driver would report it, of a card of which CUDA reports so much."""
        if self.visible_bytes == self.memory_bytes:
            return visible_bytes
        share = _RESERVE_SHARE + (_SPARE_ROWS_SHARE if self.capability == (8, 0) else 0)
        return int((visible_bytes + _RESERVE_BYTES) / (1 - share)) + 1


def cpu_device(memory_bytes: int, *, source: str, dedicated: bool = True) -> Device:
    """Return the CPU as a device with a memory limit in bytes."""
    return Device("cpu", "CPU", memory_bytes, source, dedicated=dedicated)


def gpu_from_spec(
    product: str | None,
    memory_mib: int | None = None,
    *,
    source: str = "given by the user",
    capability: tuple[int, int] | None = None,
) -> Device:
    """Return a GPU named by the user; what is given wins over the catalogue.

    Raises:
        UnknownGpuError: no memory size is given and the catalogue lacks the product.
    """
    row = find_product(product) if product else None
    if memory_mib is None and product and row and (memory_mib := part_mib(product)):
        source = f"{source}: the size in its name, less 5%"
    if memory_mib is None and row is None:
        near = product_named(product) if product else None
        raise UnknownGpuError(
            f"GPU product {product!r} is not in the catalogue; "
            + (f"did you mean {near}? Or " if near else "")
            + "also give its memory (spec.gpu.memoryMiB, or --gpu-memory-mib), as `nvidia-smi` "
            "prints it in MiB"
        )
    return build_gpu(product, memory_mib, row, source=source, capability=capability)


def build_gpu(
    product: str | None,
    memory_mib: int | None,
    row: GpuProduct | None,
    *,
    source: str,
    capability: tuple[int, int] | None = None,
) -> Device:
    """Return a GPU from what is known of it; the catalogue's row fills what is not."""
    name = product or "unnamed GPU"
    mib = memory_mib if memory_mib is not None else (row.memory_mib if row else 0)
    return Device(
        "gpu",
        name,
        mib * MIB,
        source,
        capability=capability or (row.capability if row else None),
        consumer=row.consumer if row else "GeForce" in name or "TITAN" in name,
        bandwidth_gbs=row.bandwidth_gbs if row else None,
        has_nvlink=row.has_nvlink if row else False,
        unified=row.kind == "unified" if row else False,
    )
