"""Samples for the autoscaler: every engine's /stats, asked often and believed with care.

Called by whoever scales, every few seconds for all deployments at once. One session, so many
connections and no more; an answer that is late, large, elsewhere or impossible is a miss, and after
three misses in a row a pod's figures are no longer used. Misses are counted by cause, and told once
per pod and cause until the pod answers well again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from qwen_operator.autoscaling.samples import InvalidSampleError, PodSample, parse_sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to ask; `pod` must differ for a pod that takes another's name or address."""

    pod: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much asking may cost."""

    at_once: int = 64
    seconds: float = 2.0
    answer_bytes: int = 2**20
    misses: int = 3


class MissError(Exception):
    """Why a pod gave no sample: a cause to count by, and a sentence."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause


class Sampler:
    """The latest samples of all pods that are asked."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        limits: Limits = Limits(),
        hear: Callable[[str, object], None] = lambda _pod, _stats: None,
    ) -> None:
        """Make one that knows nothing yet.

        Args:
            hear: told of each answer that makes sense, whole.
        """
        self._session, self._limits, self._hear = session, limits, hear
        self._slots = asyncio.Semaphore(limits.at_once)
        self._samples: dict[str, PodSample] = {}
        self._misses: dict[str, int] = {}
        self._told: dict[str, set[str]] = {}
        self._reasons: dict[str, str] = {}
        self.miss_counts: Counter[str] = Counter()  # by cause, for metrics

    async def refresh(self, targets: Collection[Target]) -> None:
        """Ask these pods, and forget all others."""
        self._forget_all_but({target.pod for target in targets})
        await asyncio.gather(*(self._ask(target) for target in targets))

    def fresh(self, pods: Iterable[str]) -> dict[str, PodSample]:
        """Return the samples of those pods that are not stale."""
        return {pod: self._samples[pod] for pod in pods if pod in self._samples}

    def reason(self, pod: str) -> str | None:
        """Return why the latest answer of a pod was not used; None if it was, or none came yet."""
        return self._reasons.get(pod)

    def _forget_all_but(self, pods: set[str]) -> None:
        for known in (self._samples, self._misses, self._told, self._reasons):
            for pod in set(known) - pods:
                del known[pod]

    async def _ask(self, target: Target) -> None:
        async with self._slots:
            try:
                stats = await self._fetch(target.url)
                sample = parse_sample(stats, pod=target.pod)
            except InvalidSampleError as error:
                self._miss(target, "bad value", str(error))
            except MissError as error:
                self._miss(target, error.cause, str(error))
            else:
                self._samples[target.pod] = sample
                self._misses[target.pod] = 0
                self._told.pop(target.pod, None)
                self._reasons.pop(target.pod, None)
                self._hear(target.pod, stats)

    async def _fetch(self, url: str) -> object:
        timeout = aiohttp.ClientTimeout(total=self._limits.seconds)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                _check_head(response.status, response.headers)
                return _parse(await self._read(response.content))
        except TimeoutError as error:
            raise MissError("timeout", f"no answer in {self._limits.seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise MissError("connection", f"{type(error).__name__}: {error}") from error

    async def _read(self, content: aiohttp.StreamReader) -> bytes:
        body = bytearray()
        async for chunk in content.iter_any():
            body += chunk
            if len(body) > self._limits.answer_bytes:
                raise MissError("too large", f"more than {self._limits.answer_bytes:,} bytes")
        return bytes(body)

    def _miss(self, target: Target, cause: str, words: str) -> None:
        self.miss_counts[cause] += 1
        self._reasons[target.pod] = words[:300]
        misses = self._misses[target.pod] = self._misses.get(target.pod, 0) + 1
        if misses >= self._limits.misses:
            self._samples.pop(target.pod, None)
        told = self._told.setdefault(target.pod, set())
        if cause not in told:
            told.add(cause)
            logger.warning("%s of pod %s is not used: %s", target.url, target.pod, words[:300])


def _check_head(status: int, headers: Mapping[str, str]) -> None:
    if 300 <= status < 400:
        where = headers.get("Location", "nowhere")[:100]
        raise MissError("redirect", f"redirected to {where}, which is not followed")
    if status != 200:
        raise MissError("status", f"status {status}")


def _parse(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MissError("not JSON", f"not JSON: {body[:60]!r}") from error
