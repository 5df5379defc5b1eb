"""What GPU a node gives for a resource: the ladder from labels down to names. Pure.

Called by `gpu_pools`. The first rung that answers wins, and the device says which it was: memory
labels; the catalogue by product label; the sizes that MIG and vGPU profiles carry in their names;
what the cloud calls the machine. Never more memory than one requested unit has.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import yaml

from qwen_engine.planning import (
    Device,
    UnknownGpuError,
    gpu_from_labels,
    gpu_from_spec,
    gpu_products,
)
from qwen_engine.planning.quantities import MIB
from qwen_operator.node_facts import (
    ACCELERATOR_LABEL,
    INSTANCE_LABEL,
    PRODUCT_LABEL,
    NodeFacts,
)

_GPU = "nvidia.com/gpu."
_MEMORY, _COUNT, _REPLICAS = f"{_GPU}memory", f"{_GPU}count", f"{_GPU}replicas"
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-((?:\d+c\.)?\d+g\.(\d+)gb(?:\.me)?)(?:\.shared)?")
_MIG_PRODUCT = re.compile(r"-MIG-\d+g\.(\d+)gb(?:\.me)?$")
_VGPU_PRODUCT = re.compile(r"^(?:GRID-|NVIDIA-GRID-)?(.+?)(?:-\d)?-(\d+)[ABCQ]$")
# A profile is named after more than it has: 1g.18gb of an H200 has 16,384 MiB, 4.6 % less than
# 18 GB (nvidia-smi mig -lgip); other slices come closer.
_PROFILE_SHARE = 0.95


def gpu_of_node(node: NodeFacts, resource_name: str) -> Device:
    """Return one unit of a resource that the node offers.

    Raises:
        UnknownGpuError: nothing says how much memory it has; the message names what is missing.
    """
    if match := _MIG_RESOURCE.fullmatch(resource_name):
        return _slice(node, resource_name, profile=match[1], gigabytes=int(match[2]))
    product = node.labels.get(PRODUCT_LABEL, "")
    labels = {**node.labels, _REPLICAS: str(_shares(node, resource_name))}
    if _MEMORY in labels or product.endswith("-MIG-INVALID"):
        return gpu_from_labels(labels, node=node.name)
    known = _from_profile(node) or _from_vgpu(node) or _from_cloud(node)
    if known is None and node.labels.get("nvidia.com/vgpu.present") == "true":
        raise UnknownGpuError(
            f"node {node.name}: nvidia.com/vgpu.present=true, but label {_MEMORY} is missing, and "
            f"a virtual GPU has but a part of {product or 'its card'}: run gpu-feature-discovery "
            "on the node, or set spec.gpu.memoryMiB to that part"
        )
    if known is None:
        return gpu_from_labels(labels, node=node.name)
    return _shared(known, int(labels[_REPLICAS]))


def _slice(node: NodeFacts, resource_name: str, *, profile: str, gigabytes: int) -> Device:
    """Return a MIG slice under the mixed strategy, which has labels of its own."""
    own = f"nvidia.com/mig-{profile}."
    parent = node.labels.get(PRODUCT_LABEL, "")
    product = node.labels.get(f"{own}product") or f"{parent or 'GPU'}-MIG-{profile}"
    share = _shares(node, resource_name, prefix=own)
    memory = node.labels.get(f"{own}memory")
    if memory is None:
        missing = f"label {own}memory is missing on node {node.name}"
        device = _from_size(product, gigabytes, f"the profile's name, as {missing}")
        return _shared(_capable(device, node), share)
    chosen = {k: v for k, v in node.labels.items() if k.startswith(f"{_GPU}compute.")}
    chosen |= {PRODUCT_LABEL: product, _MEMORY: memory, _REPLICAS: str(share)}
    found = gpu_from_labels(chosen, node=node.name)
    return replace(found, source=found.source.replace(_MEMORY, f"{own}memory"))


def _shares(node: NodeFacts, resource_name: str, *, prefix: str = _GPU) -> int:
    """Return among how many pods one unit's memory is divided.

    Old releases leave the replicas label at 1 (k8s-device-plugin issue 732), so what the node
    really offers counts too.
    """
    said, count = (_number(node, f"{prefix}{key}") for key in ("replicas", "count"))
    said, offered = max(1, said), node.offers(resource_name)
    if resource_name.endswith(".shared") or (node.product or "").endswith("-SHARED"):
        share = max(said, -(-offered // count) if count else 1)
        if share == 1:
            raise UnknownGpuError(
                f"node {node.name}: {resource_name} of {node.product or 'its GPUs'} is shared, but "
                f"label {prefix}replicas={said} does not say among how many; set "
                "spec.gpu.memoryMiB to the part this model may use"
            )
        return share
    if count and offered > count * said and "-MIG-" not in (node.product or ""):
        raise UnknownGpuError(
            f"node {node.name} is mixed: it offers {offered} {resource_name}, but its labels "
            f"describe only {count} of them ({node.product}). Set spec.gpu.memoryMiB to what the "
            "smallest of them has"
        )
    return said


def _from_profile(node: NodeFacts) -> Device | None:
    """Read a slice's size from the product label of MIG's single strategy."""
    product = (node.product or "").removesuffix("-SHARED")
    if not (match := _MIG_PRODUCT.search(product)):
        return None
    why = f"the profile's name, as label {_MEMORY} is missing on node {node.name}"
    return _capable(_from_size(product, int(match[1]), why), node)


def _from_vgpu(node: NodeFacts) -> Device | None:
    """Read a virtual GPU's size from its product label, such as NVIDIA-A10-24Q."""
    product = (node.product or "").removesuffix("-SHARED")
    match = _VGPU_PRODUCT.match(product)
    if match is None or product in gpu_products():
        return None
    why = f"the vGPU profile's name, as label {_MEMORY} is missing on node {node.name}"
    return _capable(_from_size(product, int(match[2]), why), node)


def _from_cloud(node: NodeFacts) -> Device | None:
    """Look the machine up by what its cloud calls it, where no product label is."""
    if node.product is not None:
        return None
    table = _clouds()
    accelerator, instance = node.labels.get(ACCELERATOR_LABEL), node.labels.get(INSTANCE_LABEL, "")
    rows = table["instanceTypes"].items()
    product = table["accelerators"].get(accelerator)
    label = f"{ACCELERATOR_LABEL}={accelerator}"
    if product is None:
        product = next((p for pattern, p in rows if fnmatchcase(instance, pattern)), None)
        label = f"{INSTANCE_LABEL}={instance}"
    if product is None:
        return None
    source = f"label {label} of node {node.name} and the catalogue"
    return _capable(gpu_from_spec(product, source=source), node)


@cache
def _clouds() -> dict[str, Any]:
    text = resources.files("qwen_operator").joinpath("data/clouds.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _from_size(product: str, gigabytes: int, why: str) -> Device:
    mib = int(gigabytes * 10**9 * _PROFILE_SHARE) // MIB
    source = f"{gigabytes} GB less 5 % by {why}"
    return gpu_from_spec(product, mib, source=source)


def _capable(device: Device, node: NodeFacts) -> Device:
    """Add the capability: the labels', else the whole card's that the product is a part of."""
    major, minor = (node.labels.get(f"{_GPU}compute.{part}", "") for part in ("major", "minor"))
    if major.isdecimal() and minor.isdecimal():
        return replace(device, capability=(int(major), int(minor)))
    parent = _MIG_PRODUCT.sub("", device.product)
    if vgpu := _VGPU_PRODUCT.match(parent):
        parent = vgpu[1]
    row = gpu_products().get(parent)
    return device if row is None else replace(device, capability=row.capability)


def _shared(device: Device, share: int) -> Device:
    if share <= 1:
        return device
    source = f"{device.source}, one of {share} shares"
    return replace(device, memory_bytes=device.memory_bytes // share, source=source)


def _number(node: NodeFacts, label: str) -> int:
    text = node.labels.get(label, "")
    return int(text) if text.isdecimal() else 0
