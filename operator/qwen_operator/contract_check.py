"""Asks what the scaler in force asks, in its words and by its way: see `contract`.

Called by `controller` for each look at a QwenDeployment that is scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from qwen_operator.cluster import Cluster
from qwen_operator.contract import Answers
from qwen_operator.errors import ApiError

Json = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name
_SECONDS = 2.0


_BELIEVED_SECONDS = 60.0  # what was found: looks at a QwenDeployment are many
_MISSED_SECONDS = 10.0  # what was not, and may have taken long not to be


class ContractCheck:
    """Asks for one QwenDeployment at a time, and not at every look."""

    def __init__(
        self,
        cluster: Cluster,
        silent: Callable[[Key], Mapping[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._silent, self._clock = cluster, silent, clock
        self._found: dict[Key, tuple[float, str, Answers]] = {}  # until when, of which object
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, key: Key, autoscaler: Json | None, scaled_object: Json | None) -> Answers:
        """Ask what a HorizontalPodAutoscaler or a ScaledObject asks, as each is written now."""
        scaler = scaled_object or autoscaler or {}
        which = str((scaler.get("metadata") or {}).get("uid", ""))
        until, of, answers = self._found.get(key, (0.0, "", Answers()))
        if self._clock() >= until or of != which:
            answers = await self._ask(key, autoscaler, scaled_object)
            believed = _BELIEVED_SECONDS if answers.asked and answers.are_whole else _MISSED_SECONDS
            self._found[key] = self._clock() + believed, which, answers
        return replace(answers, silent=self._silent(key))

    def forget(self, key: Key) -> None:
        """Ask a QwenDeployment's queries anew, or never again."""
        self._found.pop(key, None)

    async def _ask(self, key: Key, autoscaler: Json | None, scaled_object: Json | None) -> Answers:
        if scaled_object is not None:
            found = await self._of_keda(scaled_object)
        else:
            found = await self._of_hpa(key, autoscaler or {})
        missing = {query: why for query, why in found.items() if why is not None}
        return Answers(tuple(found), missing)

    async def _of_hpa(self, key: Key, autoscaler: Json) -> dict[str, str | None]:
        metrics = (autoscaler.get("spec") or {}).get("metrics") or ()
        asked = [m["external"]["metric"] for m in metrics if "external" in m]
        found: dict[str, str | None] = {}
        for metric in asked:
            labels = (metric.get("selector") or {}).get("matchLabels") or {}
            selector = ",".join(f"{name}={value}" for name, value in labels.items())
            try:
                items = await self._cluster.fetch_metric(key[0], metric["name"], selector)
            except ApiError as error:
                found[metric["name"]] = f"the API server says {error}"
            else:
                found[metric["name"]] = None if items else f"no value for {selector}"
        return found

    async def _of_keda(self, scaled_object: Json) -> dict[str, str | None]:
        triggers = (scaled_object.get("spec") or {}).get("triggers") or ()
        asked = [t["metadata"] for t in triggers if t.get("type") == "metrics-api"]
        return {
            f"{told['url']} ({told['valueLocation']})": await self._value_at(
                told["url"], told["valueLocation"]
            )
            for told in asked
        }

    async def _value_at(self, url: str, place: str) -> str | None:
        """Return why there is no number at `place` of what `url` answers; None if there is."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                body = await response.json(content_type=None)
                if response.status != 200:
                    return f"status {response.status}"
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__} {error}".strip()
        value = body.get(place) if isinstance(body, dict) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number else f"no number at {place}"
