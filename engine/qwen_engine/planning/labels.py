"""What a node's labels say of its GPUs: whole cards, shares of a card, MIG slices, vGPUs.

The ladder where gpu-feature-discovery is silent: the labels of a MIG profile, the profile's own
name, the cloud's accelerator label, the machine type. Called by the operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from qwen_engine.planning.device import Device, build_gpu
from qwen_engine.planning.errors import UnknownGpuError
from qwen_engine.planning.gpus import find_product, load_data, product_named
from qwen_engine.planning.quantities import MIB

_LABEL = "nvidia.com/gpu."
INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
ACCELERATOR_LABELS = ("cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
# gpu-feature-discovery wrote bytes in old releases (its issue 26); no card has 10^7 MiB.
_LARGEST_MIB = 10**7
_MIG_SUFFIX = re.compile(r"-MIG-\d+g\.\d+gb(\.me)?$")
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-((\d)g\.(\d+)gb(?:\.me)?)")
# A slice's name overstates what it has: 1g.10gb of an A100 is 9,728 MiB, 3g.40gb 40,192.
_MIG_USABLE = 0.95


def gpu_from_labels(
    labels: Mapping[str, str], *, node: str, resource: str = "nvidia.com/gpu"
) -> Device:
    """Return the GPU, or the MIG slice, that one unit of a resource is on a node.

    Raises:
        UnknownGpuError: nothing says how much memory it has.
    """
    if match := _MIG_RESOURCE.fullmatch(resource):
        return _mig_slice(labels, node, match[1], int(match[3]))
    label = labels.get(f"{_LABEL}product", "")
    if label.endswith("-MIG-INVALID"):
        raise UnknownGpuError(
            f"node {node}: {_LABEL}product={label}: its MIG layout is not uniform, so "
            "nvidia.com/gpu cannot be planned; make it uniform or use another node"
        )
    product = label.removesuffix("-SHARED")
    row, memory_mib = find_product(product), _label_mib(labels, f"{_LABEL}memory", node)
    memory = f"{_LABEL}memory" if memory_mib is not None else f"{_LABEL}product and the catalogue"
    if not label and memory_mib is None and (known := _from_cloud(labels)):
        (product, memory), row = known, find_product(known[0])
    if memory_mib is None and (row is None or _MIG_SUFFIX.search(product)):
        raise UnknownGpuError(
            f"node {node}: label {_LABEL}memory is missing and product {product or 'unknown'!r} is "
            "not in the catalogue; run gpu-feature-discovery on the node, or set spec.gpu.memoryMiB"
        )
    share = _share(labels, label, node, resource)
    whole = memory_mib if memory_mib is not None else (row.memory_mib if row else 0)
    source = f"{memory} of node {node}" + (f", one of {share} shares" if share > 1 else "")
    capability = _label_capability(labels)
    return build_gpu(product or None, whole // share, row, source=source, capability=capability)


def _mig_slice(labels: Mapping[str, str], node: str, profile: str, nominal_gb: int) -> Device:
    """Return a slice under the mixed strategy; missing labels are unknown, not zero."""
    prefix = f"nvidia.com/mig-{profile}."
    parent = labels.get(f"{_LABEL}product", "").removesuffix("-SHARED")
    product = labels.get(f"{prefix}product") or f"{parent or 'GPU'}-MIG-{profile}"
    memory_mib = _label_mib(labels, f"{prefix}memory", node)
    source = f"{prefix}memory of node {node}"
    if memory_mib is None:
        memory_mib = int(nominal_gb * 1024 * _MIG_USABLE)
        source = f"the name of MIG profile {profile}, less 5%: node {node} lacks {prefix}memory"
    return build_gpu(
        product,
        memory_mib,
        find_product(product) or find_product(parent),
        source=source,
        capability=_label_capability(labels),
    )


def _from_cloud(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a product and the cloud's label that names it."""
    for name in ACCELERATOR_LABELS:
        value = labels.get(name, "")
        if value and (product := product_named(value.replace("-", " "))):
            return product, f"{name}={value}"
    for name in INSTANCE_TYPE_LABELS:
        value = labels.get(name, "")
        for key, product in _instances().items():
            if value == key or (key[-1] in ".-" and value.startswith(key)):
                return product, f"{name}={value}"
    return None


@cache
def _instances() -> Mapping[str, str]:
    return dict(load_data("instances.yaml"))


def _label_mib(labels: Mapping[str, str], name: str, node: str) -> int | None:
    text = labels.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UnknownGpuError(f"node {node}: label {name}={text!r} is no number of MiB")
    value = int(text)
    return value // MIB if value > _LARGEST_MIB else value


def _label_capability(labels: Mapping[str, str]) -> tuple[int, int] | None:
    major = labels.get(f"{_LABEL}compute.major", "")
    minor = labels.get(f"{_LABEL}compute.minor", "")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _share(labels: Mapping[str, str], product: str, node: str, resource: str) -> int:
    """Return how many pods share one card. Under time slicing the memory label is the card's."""
    replicas = labels.get(f"{_LABEL}replicas", "1")
    share = int(replicas) if replicas.isdecimal() and int(replicas) > 0 else 1
    if share == 1 and (product.endswith("-SHARED") or resource.endswith(".shared")):
        raise UnknownGpuError(
            f"node {node}: {product} is shared, but label {_LABEL}replicas={replicas} does not say "
            "among how many; set spec.gpu.memoryMiB to the part this model may use"
        )
    return share
