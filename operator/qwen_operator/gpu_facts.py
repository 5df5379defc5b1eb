"""What GPU a node gives for a resource: the ladder from labels down to names. Pure.

Called by `gpu_pools`. The first rung that answers wins, and the device says which it was: memory
labels; the sizes that MIG and vGPU profiles carry in their names; what the cloud calls the machine;
the catalogue by product label. Never more memory than one requested unit has.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import yaml

from qwen_engine.planning import Device, UnknownGpuError, gpu_from_spec
from qwen_engine.planning.gpus import find_product, part_mib
from qwen_engine.planning.quantities import MIB
from qwen_operator.node_facts import (
    ACCELERATOR_LABEL,
    INSTANCE_LABEL,
    PRODUCT_LABEL,
    NodeFacts,
)

_GPU = "nvidia.com/gpu."
_MEMORY = f"{_GPU}memory"
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-((?:\d+c\.)?\d+g\.\d+gb(?:\.me)?)(?:\.shared)?")
# gpu-feature-discovery wrote bytes in old releases (its issue 26); no card has 10^7 MiB.
_LARGEST_MIB = 10**7


def gpu_of_node(node: NodeFacts, resource_name: str) -> Device:
    """Return one unit of a resource that the node offers.

    Raises:
        UnknownGpuError: nothing says how much memory it has; the message names what is missing.
    """
    if match := _MIG_RESOURCE.fullmatch(resource_name):
        return _slice(node, resource_name, profile=match[1])
    label = node.product or ""
    if label.endswith("-MIG-INVALID"):
        raise UnknownGpuError(
            f"node {node.name}: {PRODUCT_LABEL}={label}: its MIG layout is not uniform, so "
            "nvidia.com/gpu cannot be planned; make it uniform or use another node"
        )
    share, product = _shares(node, resource_name), label.removesuffix("-SHARED")
    known = _from_memory(node, product, _MEMORY) or _from_name(node, product) or _from_cloud(node)
    return _shared(known or _from_catalogue(node, product), share)


def _slice(node: NodeFacts, resource_name: str, *, profile: str) -> Device:
    """Return a MIG slice under the mixed strategy, which has labels of its own."""
    own = f"nvidia.com/mig-{profile}."
    named = f"{node.product or 'GPU'}-MIG-{profile}"
    product = node.labels.get(f"{own}product") or named
    share = _shares(node, resource_name, prefix=own)
    known = _from_memory(node, product, f"{own}memory")
    if known is None:
        known = _of_part(node, product, part_mib(named) or 0, missing=f"{own}memory")
    return _shared(known, share)


def _shares(node: NodeFacts, resource_name: str, *, prefix: str = _GPU) -> int:
    """Return among how many pods one unit's memory is divided; the memory label is the card's.

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


def _from_memory(node: NodeFacts, product: str, label: str) -> Device | None:
    """Read the size that a label gives in MiB."""
    text = node.labels.get(label)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UnknownGpuError(f"node {node.name}: label {label}={text!r} is no number of MiB")
    mib = int(text) // MIB if int(text) > _LARGEST_MIB else int(text)
    return _labelled(node, product or None, mib, source=f"{label} of node {node.name}")


def _from_name(node: NodeFacts, product: str) -> Device | None:
    """Read the size that a slice's or virtual GPU's product label carries in itself."""
    mib = part_mib(product)
    return None if mib is None else _of_part(node, product, mib, missing=_MEMORY)


def _of_part(node: NodeFacts, product: str, mib: int, *, missing: str) -> Device:
    kind = "profile's" if "-MIG-" in product else "vGPU profile's"
    why = f"label {missing} is missing on node {node.name}"
    return _labelled(node, product, mib, source=f"the size in the {kind} name, less 5 %, as {why}")


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
    return _labelled(node, product, None, source=source)


@cache
def _clouds() -> dict[str, Any]:
    text = resources.files("qwen_operator").joinpath("data/clouds.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _from_catalogue(node: NodeFacts, product: str) -> Device:
    if node.labels.get("nvidia.com/vgpu.present") == "true":
        raise UnknownGpuError(
            f"node {node.name}: nvidia.com/vgpu.present=true, but label {_MEMORY} is missing, and "
            f"a virtual GPU has but a part of {product or 'its card'}: run gpu-feature-discovery "
            "on the node, or set spec.gpu.memoryMiB to that part"
        )
    row = find_product(product)
    if row is None:
        raise UnknownGpuError(
            f"node {node.name}: label {_MEMORY} is missing and product {product or 'unknown'!r} is "
            "not in the catalogue; run gpu-feature-discovery on the node, or set spec.gpu.memoryMiB"
        )
    source = f"label {PRODUCT_LABEL} of node {node.name} and the catalogue"
    return _labelled(node, product, row.memory_mib, source=source)


def _labelled(node: NodeFacts, product: str | None, mib: int | None, *, source: str) -> Device:
    """Return a device with the capability of the labels, else of the card it is (a part of)."""
    major, minor = (node.labels.get(f"{_GPU}compute.{part}", "") for part in ("major", "minor"))
    is_said = major.isdecimal() and minor.isdecimal()
    capability = (int(major), int(minor)) if is_said else None
    return gpu_from_spec(product, mib, source=source, capability=capability)


def _shared(device: Device, share: int) -> Device:
    if share <= 1:
        return device
    mib = device.memory_bytes // MIB // share
    return replace(device, memory_bytes=mib * MIB, source=f"{device.source}, one of {share} shares")


def _number(node: NodeFacts, label: str) -> int:
    text = node.labels.get(label, "")
    return int(text) if text.isdecimal() else 0
