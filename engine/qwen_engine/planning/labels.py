"""What gpu-feature-discovery's labels say of a node's GPUs: whole cards, or shares of a card.

Called by the operator, which knows the further ladder: MIG profiles, vGPUs, machine types.
"""

from __future__ import annotations

from collections.abc import Mapping

from qwen_engine.planning.device import Device, build_gpu
from qwen_engine.planning.errors import UnknownGpuError
from qwen_engine.planning.gpus import find_product, is_part
from qwen_engine.planning.quantities import MIB

_LABEL = "nvidia.com/gpu."
# gpu-feature-discovery wrote bytes in old releases (its issue 26); no card has 10^7 MiB.
_LARGEST_MIB = 10**7


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
    row, memory_mib = find_product(product), _label_mib(labels, node)
    if memory_mib is None and (row is None or is_part(product)):
        raise UnknownGpuError(
            f"node {node}: label {_LABEL}memory is missing and product {product or 'unknown'!r} is "
            "not in the catalogue; run gpu-feature-discovery on the node, or set spec.gpu.memoryMiB"
        )
    memory = f"{_LABEL}memory" if memory_mib is not None else f"{_LABEL}product and the catalogue"
    share = _share(labels, label, node)
    whole = memory_mib if memory_mib is not None else (row.memory_mib if row else 0)
    source = f"{memory} of node {node}" + (f", one of {share} shares" if share > 1 else "")
    capability = _label_capability(labels)
    return build_gpu(product or None, whole // share, row, source=source, capability=capability)


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
    if share == 1 and product.endswith("-SHARED"):
        raise UnknownGpuError(
            f"node {node}: {product} is shared, but label {_LABEL}replicas={replicas} does not say "
            "among how many; set spec.gpu.memoryMiB to the part this model may use"
        )
    return share
