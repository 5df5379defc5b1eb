"""Which devices to plan for: spec.gpu, else what the cluster's nodes offer.

Called by `spec_plan`, which takes the first candidate that the model fits on: whole cards before
shared ones, the smallest memory first. Pure: nodes come in as facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qwen_engine.planning import Device, UnknownGpuError, gpu_from_spec, gpu_products
from qwen_engine.planning.quantities import MIB
from qwen_operator.gpu_pools import Pool, build_pools
from qwen_operator.node_facts import DEVICE_LABELS, PRODUCT_LABEL, NodeFacts
from qwen_operator.spec import GpuSpec

WHOLE_GPU = GpuSpec().resource_name
# Cards are sold by a rounder size than their drivers report: an A10 of "24 GB" has 22,731 MiB.
_NOMINAL = 0.9
_PCI_LABELS = ("pci-10de.present", "pci-0300_10de.present", "pci-0302_10de.present")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may be planned for, the node labels that lead there, and what to tell.

    Attributes:
        gpus: how many of it the cluster's nodes offer; 0 where no node is known yet.
    """

    device: Device
    node_selector: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    gpus: int = 0


def find_candidates(
    gpu: GpuSpec, nodes: Iterable[NodeFacts], node_selector: Mapping[str, str]
) -> list[Candidate]:
    """Return the GPUs to try, in this order; at least one.

    Args:
        node_selector: spec.template.nodeSelector; pods run nowhere else.

    Raises:
        UnknownGpuError: nothing says how much memory a GPU has; the message names the ways out.
    """
    found = _candidates(gpu, list(nodes), node_selector)
    return [replace(each, device=_for_pod(each.device, gpu)) for each in found]


def _candidates(
    gpu: GpuSpec, everywhere: Sequence[NodeFacts], node_selector: Mapping[str, str]
) -> list[Candidate]:
    here = [node for node in everywhere if _matches(node, node_selector)]
    pools = build_pools(here, gpu.resource_name)
    if gpu.product is not None:
        pools = [pool for pool in pools if _is_product(pool, gpu.product)]
    if gpu.memory_mib is not None:
        return _given(gpu, gpu.memory_mib, pools)
    known = [_candidate(pool) for pool in pools if pool.device is not None]
    if known:
        return known
    if pools:
        raise UnknownGpuError(pools[0].problem)
    if gpu.product is not None:
        return [_from_catalogue(gpu.product, gpu.count, here)]
    raise UnknownGpuError(_nothing_offered(gpu, everywhere, here, node_selector))


def is_offered(selector: Mapping[str, str], nodes: Iterable[NodeFacts]) -> bool:
    """Say whether any node carries the device label that a pod is led by."""
    wanted = {key: selector[key] for key in DEVICE_LABELS if key in selector}
    return not wanted or any(_matches(node, wanted) for node in nodes)


def _for_pod(device: Device, gpu: GpuSpec) -> Device:
    """Return the device with as many as one pod may have: parts of cards do not work together."""
    is_part = "/mig-" in gpu.resource_name or "-MIG-" in device.product
    is_part = is_part or gpu.resource_name.endswith(".shared") or " shares" in device.source
    return replace(device, count=1 if is_part else min(device.count, gpu.count))


def _matches(node: NodeFacts, selector: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in selector.items())


def _is_product(pool: Pool, product: str) -> bool:
    named = pool.device.product if pool.device else ""
    return pool.label in (product, f"{product}-SHARED") or named == product


def _candidate(pool: Pool) -> Candidate:
    assert pool.device is not None, "only pools whose memory is known become candidates"
    left_out = (f"not all of its nodes can be read: {pool.problem}",) if pool.problem else ()
    return Candidate(pool.device, pool.selector, left_out, pool.gpus)


def _given(gpu: GpuSpec, memory_mib: int, pools: Sequence[Pool]) -> list[Candidate]:
    """Plan for the memory that spec.gpu names, and never for more than nodes report.

    A nominal size, such as 24576 for a card of "24 GB", also means cards that report a little less.
    """
    enough = [
        pool
        for pool in pools
        if pool.device is None or pool.device.memory_bytes >= int(memory_mib * MIB * _NOMINAL)
    ]
    if gpu.product is None:
        enough = [pool for pool in enough if pool.device is not None] or enough
    found = [_bounded(pool, gpu, memory_mib) for pool in enough]
    if found:
        return found
    device = gpu_from_spec(gpu.product, memory_mib, source="spec.gpu.memoryMiB")
    device = replace(device, count=gpu.count)
    too_small = ", ".join(f"{p.label} ({_mib(p):,} MiB)" for p in pools if p.device)
    warning = f"no node's GPU has as much as spec.gpu.memoryMiB={memory_mib}: {too_small}"
    return [Candidate(device, {}, (warning,) if too_small else ())]


def _bounded(pool: Pool, gpu: GpuSpec, memory_mib: int) -> Candidate:
    host = pool.device.host_memory_bytes if pool.device else None
    product = pool.device.product if pool.device else gpu.product
    if pool.device is not None and pool.device.memory_bytes < memory_mib * MIB:
        warning = (
            f"spec.gpu.memoryMiB={memory_mib} is more than {pool.label} has: planned with the "
            f"{_mib(pool):,} MiB that its nodes report"
        )
        return Candidate(pool.device, pool.selector, (warning,), pool.gpus)
    device = gpu_from_spec(product, memory_mib, source="spec.gpu.memoryMiB")
    capability = pool.device.capability if pool.device else device.capability
    count = pool.device.count if pool.device else gpu.count
    device = replace(device, capability=capability, host_memory_bytes=host, count=count)
    selector = pool.selector if gpu.product is not None or pool.device is not None else {}
    return Candidate(device, selector, (), pool.gpus)


def _mib(pool: Pool) -> int:
    return pool.device.memory_bytes // MIB if pool.device else 0


def _from_catalogue(product: str, count: int, here: Sequence[NodeFacts]) -> Candidate:
    if product in gpu_products():
        device = gpu_from_spec(product, source="spec.gpu.product and the catalogue")
        return Candidate(replace(device, count=count), {})
    products = sorted({node.product for node in here if node.product})
    known = f" Nodes offer: {', '.join(products)}" if products else ""
    raise UnknownGpuError(
        f"no node carries the label {PRODUCT_LABEL}={product}, and the built-in catalogue does not "
        f"know this product: correct spec.gpu.product, or set spec.gpu.memoryMiB to its memory in "
        f"MiB.{known}"
    )


def _nothing_offered(
    gpu: GpuSpec,
    everywhere: Sequence[NodeFacts],
    here: Sequence[NodeFacts],
    node_selector: Mapping[str, str],
) -> str:
    """Say why no node offers the resource, the likeliest cause first."""
    resource = gpu.resource_name
    elsewhere = [node for node in everywhere if node.offers(resource) > 0]
    if elsewhere:
        node = min(elsewhere, key=lambda node: node.name)
        lacking = next(k for k, v in node_selector.items() if node.labels.get(k) != v)
        has = node.labels.get(lacking)
        return (
            f"no node that offers {resource} matches spec.template.nodeSelector: node {node.name} "
            + (f"has label {lacking}={has}" if has else f"lacks label {lacking}")
            + f", wanted is {lacking}={node_selector[lacking]}"
        )
    if others := _other_resources(here):
        return (
            f"no node offers {resource} (status.allocatable), but nodes offer {others}: set "
            "spec.gpu.resourceName to one of these"
        )
    if hint := _idle_gpus(here, resource):
        return hint
    if resource != WHOLE_GPU:
        return (
            f"no node offers {resource} (status.allocatable), so nothing tells its memory: set "
            "spec.gpu.memoryMiB to what one of them has, or correct spec.gpu.resourceName"
        )
    return (
        f"no node offers {resource} (status.allocatable), so there is no GPU to plan for: install "
        "NVIDIA's device plugin and gpu-feature-discovery, or name a GPU that will come with "
        "spec.gpu.product (such as NVIDIA-L4), or set spec.gpu.count to 0 to serve on the CPU"
    )


def _other_resources(nodes: Sequence[NodeFacts]) -> str:
    """Name the GPU resources of other names: MIG slices and renamed shares, with their nodes."""
    found: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        for name, count in node.allocatable.items():
            if count > 0 and name.startswith(("nvidia.com/mig-", "nvidia.com/gpu")):
                found.setdefault(name, f"{name} ({count} on {node.name})")
    return ", ".join(found[name] for name in sorted(found))


def _idle_gpus(nodes: Sequence[NodeFacts], resource: str) -> str:
    """Tell of a node whose labels speak of a GPU that it does not offer."""
    for node in sorted(nodes, key=lambda node: node.name):
        if node.product:
            return (
                f"node {node.name} is labelled {PRODUCT_LABEL}={node.product}, but offers no "
                f"{resource} (status.allocatable): NVIDIA's device plugin does not run there, or "
                "finds no healthy GPU"
            )
        pci = next((k for k in node.labels if k.endswith(_PCI_LABELS)), None)
        if pci is not None:
            return (
                f"node {node.name} has an NVIDIA device (label {pci}), but offers no {resource} "
                "(status.allocatable): install NVIDIA's driver and device plugin there"
            )
    return ""
