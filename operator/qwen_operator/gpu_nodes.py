"""The cluster's nodes as GPU facts, kept current by events and listed anew now and then.

Called by `controller`. A listing every few minutes makes up for events that a broken watch lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from qwen_operator.cluster import NODE, Cluster
from qwen_operator.errors import RefusedError
from qwen_operator.node_facts import NodeFacts, parse_node

_RELIST_SECONDS = 600.0
logger = logging.getLogger(__name__)


class GpuNodes:
    """What nodes offer, by node name."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._facts: dict[str, NodeFacts] = {}
        self._listed_at: float | None = None
        self._lock = asyncio.Lock()  # workers that start together list once

    async def fetch(self) -> tuple[NodeFacts, ...]:
        """Return all nodes' facts, listing them if that was never done or long ago."""
        async with self._lock:
            now = self._clock()
            if self._listed_at is None or now - self._listed_at > _RELIST_SECONDS:
                self._facts = {facts.name: facts for facts in await self._list()}
                self._listed_at = now
        return tuple(self._facts.values())

    def observe(self, event_type: str | None, node: Mapping[str, Any]) -> bool:
        """Take in a watch event; return whether it changes what the node offers."""
        name = node["metadata"]["name"]
        if event_type == "DELETED":
            return self._facts.pop(name, None) is not None
        facts = parse_node(node)
        changed = self._facts.get(name) != facts
        self._facts[name] = facts
        return changed

    async def _list(self) -> list[NodeFacts]:
        try:
            return [parse_node(node) for node in await self._cluster.fetch_all(NODE)]
        except RefusedError as error:
            logger.warning("nodes cannot be listed, so GPUs must be named in specs: %s", error)
            return []
