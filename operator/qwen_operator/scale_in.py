"""Keeps the pods' deletion costs: roughly all the time, exactly before pods go.

Called by `controller`. How often it writes is bounded: a pod's cost is written at most once in 30 s
and only when it is off by a tenth of the pool (or the pod turned idle), over all pods at most 60
times per look at the engines; besides, once for each pod just before the operator shrinks its
deployment, if otherwise the wrong ones would go. An idle cluster sees no write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from qwen_operator import names
from qwen_operator.cluster import POD, Cluster
from qwen_operator.deletion_cost import Blocks, costs_before_scale_in, drift
from qwen_operator.errors import ApiError, RefusedError
from qwen_operator.pods import PodFacts
from qwen_operator.readings import Key, Readings

WRITE_SECONDS = 30.0  # between two writes to a pod
WRITES_AT_ONCE = 60  # after one look at all engines
_SEEN_SECONDS = 0.5  # until the ReplicaSet controller has surely heard of a write
logger = logging.getLogger(__name__)


class DeletionCosts:
    """Writes `controller.kubernetes.io/pod-deletion-cost` on pods of more than one replica."""

    def __init__(self, cluster: Cluster, readings: Readings, clock: Callable[[], float]) -> None:
        self._cluster, self._readings, self._clock = cluster, readings, clock
        self._written: dict[str, float] = {}  # by the pod's uid
        self._is_refused = False

    async def keep(self) -> None:
        """Write what is far off, the farthest first; to be called after each look at the pods."""
        now = self._clock()
        self._written = {u: at for u, at in self._written.items() if now - at < WRITE_SECONDS}
        off = [
            (share, key, pod, blocks[pod.name]["used"])
            for key, pods, blocks in self._several()
            for pod in pods
            if pod.name in blocks and pod.uid not in self._written
            if (share := drift(pod, blocks[pod.name])) > 0
        ]
        off.sort(key=lambda one: one[0], reverse=True)
        for _, key, pod, cost in off[:WRITES_AT_ONCE]:
            await self._write(key, pod, cost)

    async def settle(self, key: Key, going: int) -> None:
        """Have the right pods go, before so many do."""
        pods = [pod for pod in self._readings.pods(key) if pod.is_ready]
        if len(pods) < 2:
            return
        await self._readings.ask(key)
        pods = list(self._readings.pods(key))
        costs = costs_before_scale_in(pods, self._blocks(key), going)
        for pod in pods:
            if pod.name in costs:
                await self._write(key, pod, costs[pod.name])
        if costs:
            await asyncio.sleep(_SEEN_SECONDS)

    def _several(self) -> list[tuple[Key, list[PodFacts], Mapping[str, Blocks]]]:
        """Return the ready pods of whatever has several."""
        found: list[tuple[Key, list[PodFacts], Mapping[str, Blocks]]] = []
        for key in self._readings.followed():
            ready = [pod for pod in self._readings.pods(key) if pod.is_ready]
            if len(ready) > 1:
                found.append((key, ready, self._blocks(key)))
        return found

    def _blocks(self, key: Key) -> dict[str, Blocks]:
        told = self._readings.of(key)
        return {pod: reading.blocks for pod, reading in told.items() if reading.blocks is not None}

    async def _write(self, key: Key, pod: PodFacts, cost: int) -> None:
        self._written[pod.uid] = self._clock()
        notes = {names.DELETION_COST_ANNOTATION: str(cost)}
        try:
            await self._cluster.annotate(POD, key[0], pod.name, uid=pod.uid, annotations=notes)
        except RefusedError as error:
            if not self._is_refused:
                logger.warning("which pod goes first is left to Kubernetes: %s", error)
            self._is_refused = True
        except ApiError as error:
            logger.warning("%s/%s: its deletion cost was not written: %s", key[0], pod.name, error)
