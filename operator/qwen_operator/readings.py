"""The engines' latest words on their blocks and load progress, per QwenDeployment.

Called by `controller`: a pod is asked when it turns ready, and then at the scrape interval, which
bounds how often status.blocks is written. Pods that are scaled are asked more often, by `sampling`;
what they say there is heard here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp

from qwen_operator.pods import PodFacts
from qwen_operator.scrape import parse_stats, scrape_pods
from qwen_operator.status import Reading

Key = tuple[str, str]
_NOTHING = Reading()


class Readings:
    """Readings by QwenDeployment and pod. Pods that were asked in vain count as asked."""

    def __init__(self) -> None:
        self._pods: dict[Key, tuple[PodFacts, ...]] = {}
        self._readings: dict[Key, dict[str, Reading]] = {}
        self._heard: dict[str, Reading] = {}  # by uid, since the last refresh
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()

    def followed(self) -> list[Key]:
        """Return the QwenDeployments whose pods are asked."""
        return list(self._pods)

    def pods(self, key: Key) -> Sequence[PodFacts]:
        """Return a QwenDeployment's pods as they were last seen."""
        return self._pods.get(key, ())

    def of(self, key: Key) -> Mapping[str, Reading]:
        """Return what is known of a QwenDeployment's pods."""
        return self._readings.get(key, {})

    def forget(self, key: Key) -> None:
        """Drop a QwenDeployment that is gone."""
        self._pods.pop(key, None)
        self._readings.pop(key, None)

    async def follow(self, key: Key, pods: Sequence[PodFacts]) -> None:
        """Remember which pods to ask, and ask those at once that have just turned ready."""
        were_ready = {pod.name for pod in self._pods.get(key, ()) if pod.is_ready}
        self._pods[key] = tuple(pods)
        known = self._readings.setdefault(key, {})
        for name in set(known) - {pod.name for pod in pods}:
            del known[name]
        await self._ask(known, [p for p in pods if p.is_ready and p.name not in were_ready])

    def hear(self, uid: str, stats: object) -> None:
        """Take in what a pod's engine told somebody else, so that it need not be asked again."""
        if (reading := parse_stats(stats)) is not None:
            self._heard[uid] = reading

    async def ask(self, key: Key) -> None:
        """Ask the pods of one QwenDeployment now."""
        await self._ask(self._readings.setdefault(key, {}), self._pods.get(key, ()))

    async def refresh(self) -> list[Key]:
        """Ask every pod that runs and was not heard; return those whose readings changed."""
        keys = list(self._pods)
        before = {key: dict(self.of(key)) for key in keys}
        heard, self._heard = self._heard, {}
        asks = []
        for key in keys:
            known, pods = self._readings[key], self._pods[key]
            known.update({pod.name: heard[pod.uid] for pod in pods if pod.uid in heard})
            asks.append(self._ask(known, [pod for pod in pods if pod.uid not in heard]))
        await asyncio.gather(*asks)
        return [key for key in keys if self.of(key) != before[key]]

    async def _ask(self, known: dict[str, Reading], pods: Sequence[PodFacts]) -> None:
        if not pods:
            return
        if self._session is None:
            self._session = aiohttp.ClientSession()
        found = await scrape_pods(self._session, pods)
        known.update({pod.name: found.get(pod.name, _NOTHING) for pod in pods})
