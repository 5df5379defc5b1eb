"""Nodes with the same GPU, as one pool: what pods get there, and how they are led there. Pure.

Called by `devices`. A pool is planned for its poorest node, for the scheduler may choose any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qwen_engine.planning import Device, UnknownGpuError
from qwen_operator.gpu_facts import gpu_of_node
from qwen_operator.node_facts import NodeFacts


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that offer a resource under one product label.

    Attributes:
        selector: the node label that leads pods here; empty where the nodes carry none.
        device: one unit of the resource on the poorest node, and as its count how many of them the
            largest node offers; None where nothing tells its memory.
        problem: why there is no device, or which nodes were left out.
        gpus: how many units pods may ask for, over all its nodes.
    """

    selector: Mapping[str, str]
    device: Device | None
    problem: str
    nodes: tuple[str, ...]
    gpus: int

    @property
    def label(self) -> str:
        """What to call it: the value of its label."""
        found = next(iter(self.selector.values()), "")
        return found or (self.device.product if self.device else "unlabelled nodes")

    @property
    def is_shared(self) -> bool:
        """Whether several pods share one card."""
        return "-SHARED" in self.label or bool(self.device and " shares" in self.device.source)


def build_pools(nodes: Iterable[NodeFacts], resource_name: str) -> list[Pool]:
    """Group the nodes that offer a resource; whole cards first, then by memory, then by name."""
    groups: dict[tuple[tuple[str, str], ...], list[NodeFacts]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        if node.offers(resource_name) > 0:
            groups.setdefault(tuple(node.device_selector.items()), []).append(node)
    pools = [_pool(group, resource_name) for group in groups.values()]
    return sorted(pools, key=_rank)


def _rank(pool: Pool) -> tuple[bool, bool, int, str]:
    memory = pool.device.memory_bytes if pool.device else 0
    return (pool.device is None, pool.is_shared, memory, pool.label)


def _pool(nodes: Sequence[NodeFacts], resource_name: str) -> Pool:
    found: list[tuple[Device, NodeFacts]] = []
    problems = []
    for node in nodes:
        try:
            found.append((gpu_of_node(node, resource_name), node))
        except UnknownGpuError as error:
            problems.append(str(error))
    poorest = min(found, key=lambda pair: pair[0].memory_bytes, default=None)
    host = _host_share(nodes, resource_name)
    most = max(node.offers(resource_name) for node in nodes)
    return Pool(
        selector=nodes[0].device_selector,
        device=replace(poorest[0], host_memory_bytes=host, count=most) if poorest else None,
        problem=problems[0] if problems else "",
        nodes=tuple(node.name for node in nodes),
        gpus=sum(node.offers(resource_name) for node in nodes),
    )


def _host_share(nodes: Iterable[NodeFacts], resource_name: str) -> int | None:
    """Return a unit's share of its node's memory, on the poorest node; None if no node says it."""
    shares = [
        node.memory_bytes // node.offers(resource_name)
        for node in nodes
        if node.memory_bytes is not None
    ]
    return min(shares, default=None)
