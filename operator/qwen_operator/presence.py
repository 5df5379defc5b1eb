"""Whether a kind of somebody else's is installed in the cluster, asked now and then.

Called by `controller`.
"""

from __future__ import annotations

from collections.abc import Callable

from qwen_operator.cluster import Cluster, Kind

_BELIEVED_SECONDS = 10.0


class Presence:
    """One kind that may come and go with its CRD."""

    def __init__(self, cluster: Cluster, kind: Kind, clock: Callable[[], float]) -> None:
        self._cluster, self._kind, self._clock = cluster, kind, clock
        self._asked_at: float | None = None
        self._is_there = False

    async def is_there(self) -> bool:
        """Say whether the API serves the kind. Raises ApiError."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= _BELIEVED_SECONDS:
            self._is_there = await self._cluster.serves(self._kind)
            self._asked_at = now
        return self._is_there
