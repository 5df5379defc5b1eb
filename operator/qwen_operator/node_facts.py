"""What a node says of its GPUs: labels, and how many of each resource it can give. Pure.

Called by `gpu_nodes` with every node, and read by the modules that find devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import parse_bytes, parse_quantity

PRODUCT_LABEL = "nvidia.com/gpu.product"
ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
# What tells nodes with different GPUs apart, the most telling first.
DEVICE_LABELS = (PRODUCT_LABEL, ACCELERATOR_LABEL, INSTANCE_LABEL)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node, reduced to what planning asks of it.

    Attributes:
        allocatable: extended resources that pods can be given, by name.
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

    @property
    def device_selector(self) -> dict[str, str]:
        """The label that leads a pod to this kind of GPU; empty if the node has none."""
        found = [(key, self.labels[key]) for key in DEVICE_LABELS if self.labels.get(key)]
        return dict(found[:1])

    def offers(self, resource_name: str) -> int:
        """Return how many of a resource its pods may ask for."""
        return self.allocatable.get(resource_name, 0)


def parse_node(node: Mapping[str, Any]) -> NodeFacts:
    """Reduce a Node; extended resources are those with a slash in their name."""
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return NodeFacts(
        name=node["metadata"]["name"],
        labels=dict(sorted(labels.items())),
        allocatable={k: int(parse_quantity(v)) for k, v in sorted(allocatable.items()) if "/" in k},
        memory_bytes=parse_bytes(allocatable["memory"]) if "memory" in allocatable else None,
    )
