"""Which device to plan for: spec.gpu, else the labels of the cluster's nodes, else the CPU.

Called by `decision`. Pure: nodes come in as facts. Of several products in a cluster the one with
the most memory is taken (ties: by product, then node name), because it fits most; that is stated in
the plan's warnings, and spec.gpu.product chooses another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import (
    Device,
    UnknownGpuError,
    gpu_from_labels,
    gpu_from_spec,
    gpu_products,
    parse_bytes,
    parse_quantity,
)
from qwen_operator.spec import GpuSpec

PRODUCT_LABEL = "nvidia.com/gpu.product"
WHOLE_GPU = GpuSpec().resource_name
_LABEL_PREFIX = "nvidia.com/"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of its GPUs: NVIDIA's labels, and how many of each resource it can give.

    Attributes:
        memory_bytes: what its pods may have together; None if the node does not say.
    """

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    memory_bytes: int | None = None

    @property
    def product(self) -> str | None:
        """The product label, if the node carries one."""
        return self.labels.get(PRODUCT_LABEL)


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device, the node labels that lead pods to it, and what the user may want to know."""

    device: Device
    node_selector: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def parse_node(node: Mapping[str, Any]) -> NodeFacts:
    """Reduce a Node to what planning asks of it; extended resources have a slash in their name."""
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return NodeFacts(
        name=node["metadata"]["name"],
        labels={k: v for k, v in sorted(labels.items()) if k.startswith(_LABEL_PREFIX)},
        allocatable={k: int(parse_quantity(v)) for k, v in sorted(allocatable.items()) if "/" in k},
        memory_bytes=parse_bytes(allocatable["memory"]) if "memory" in allocatable else None,
    )


def choose_gpu(gpu: GpuSpec, nodes: Iterable[NodeFacts]) -> DeviceChoice:
    """Return the GPU to plan for.

    Raises:
        UnknownGpuError: nothing says how much memory it has; the message names the ways out.
    """
    offers = sorted(
        (n for n in nodes if n.allocatable.get(gpu.resource_name, 0) > 0), key=lambda n: n.name
    )
    if gpu.memory_mib is not None:
        device = gpu_from_spec(gpu.product, gpu.memory_mib, source="spec.gpu.memoryMiB")
        return DeviceChoice(device, _selector(_of_product(offers, gpu.product)))
    if gpu.resource_name != WHOLE_GPU:
        raise UnknownGpuError(
            f"spec.gpu.resourceName is {gpu.resource_name}, whose memory no node label tells: "
            "set spec.gpu.memoryMiB to what one of them has"
        )
    return _named(gpu.product, offers) if gpu.product else _largest(offers)


def host_memory_beside(
    choice: DeviceChoice, gpu: GpuSpec, nodes: Iterable[NodeFacts]
) -> int | None:
    """Return a GPU's share of its node's memory, on the poorest node; None if no node says it."""
    product = choice.node_selector.get(PRODUCT_LABEL)
    shares = [
        node.memory_bytes // count
        for node in nodes
        if (count := node.allocatable.get(gpu.resource_name, 0)) > 0
        and node.memory_bytes is not None
        and product in (None, node.product)
    ]
    return min(shares, default=None)


def is_offered(product: str, nodes: Iterable[NodeFacts]) -> bool:
    """Say whether any node carries this product label."""
    return any(node.product == product for node in nodes)


def _named(product: str, offers: Sequence[NodeFacts]) -> DeviceChoice:
    matching = _of_product(offers, product)
    if not matching:
        if product not in gpu_products():
            raise UnknownGpuError(
                f"no node carries the label {PRODUCT_LABEL}={product}, and the built-in catalogue "
                "does not know this product: correct spec.gpu.product, or set spec.gpu.memoryMiB "
                f"to its memory in MiB.{_known(offers)}"
            )
        return DeviceChoice(gpu_from_spec(product, source="spec.gpu.product and the catalogue"), {})
    device = gpu_from_labels(matching[0].labels, node=matching[0].name)
    return DeviceChoice(device, _selector(matching))


def _largest(offers: Sequence[NodeFacts]) -> DeviceChoice:
    found: dict[str, tuple[NodeFacts, Device]] = {}
    refused: list[str] = []
    for node in offers:
        try:
            found.setdefault(
                node.product or "", (node, gpu_from_labels(node.labels, node=node.name))
            )
        except UnknownGpuError as error:
            refused.append(str(error))
    if not found:
        raise UnknownGpuError(refused[0] if refused else _no_gpu_anywhere())
    ordered = sorted(
        found.values(), key=lambda pair: (-pair[1].memory_bytes, pair[0].product or "")
    )
    node, device = ordered[0]
    return DeviceChoice(device, _selector([node]), _several([n.product or "?" for n, _ in ordered]))


def _of_product(offers: Iterable[NodeFacts], product: str | None) -> list[NodeFacts]:
    """Return the nodes of a product; a time-sliced card counts, after whole ones."""
    if product is None:
        return []
    spellings = [product, f"{product}-SHARED"]
    return [node for spelling in spellings for node in offers if node.product == spelling]


def _selector(nodes: Sequence[NodeFacts]) -> dict[str, str]:
    product = nodes[0].product if nodes else None
    return {PRODUCT_LABEL: product} if product else {}


def _several(products: Sequence[str]) -> tuple[str, ...]:
    if len(products) < 2:
        return ()
    others = ", ".join(products[1:])
    return (
        f"nodes offer {len(products)} GPU products; planned for {products[0]}, which has the most "
        f"memory. spec.gpu.product chooses another: {others}",
    )


def _known(offers: Sequence[NodeFacts]) -> str:
    products = sorted({node.product for node in offers if node.product})
    return f" Nodes offer: {', '.join(products)}" if products else ""


def _no_gpu_anywhere() -> str:
    return (
        f"no node offers {WHOLE_GPU} (status.allocatable), so there is no GPU to plan for: install "
        "NVIDIA's device plugin and gpu-feature-discovery, or name a GPU that will come with "
        "spec.gpu.product (such as NVIDIA-L4), or set spec.gpu.count to 0 to serve on the CPU"
    )
