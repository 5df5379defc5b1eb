"""Keeps the doors, and their EndpointSlices, as the cluster says.

Called by `run` with what kopf's watches tell. Slices are applied by one task, one after the other;
what fails is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from qwen_operator.activation import (
    MANAGED_BY,
    MANAGER,
    RENEW_SECONDS,
    SERVICE_LABEL,
    activator_of,
    build_slice,
    slice_name,
)
from qwen_operator.activator.door import Door
from qwen_operator.activator.forward import open_session
from qwen_operator.activator.targets import read_guest, ready_endpoints
from qwen_operator.cluster import Cluster
from qwen_operator.errors import ApiError, OperatorError

Json = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name
_AGAIN_SECONDS = 1.0
# From leaving the Services to listening no more: kube-proxies look once a second, and later where
# they have much to do.
LEAVE_SECONDS = 5.0
logger = logging.getLogger(__name__)


class Reception:
    """All QwenDeployments that may be without pods."""

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        today: Callable[[], datetime],
        *,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        """Make an empty one; `address` is this process's own, as the cluster reaches it."""
        self._cluster, self._address, self._today = cluster, address, today
        self._leave_seconds = leave_seconds
        self._session = open_session()
        self._doors: dict[Key, Door] = {}
        self._slices: dict[Key, dict[str, Json]] = {}
        self._applied: dict[Key, Json] = {}
        self._dirty: set[Key] = set()
        self._wake, self._is_stopping = asyncio.Event(), False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to apply slices."""
        self._task = asyncio.create_task(self._publish())

    async def stop(self) -> None:
        """Leave the Services, send away who waits or still comes, and let answers end."""
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
        for key in self._doors:
            await self._apply(key)
        for door in self._doors.values():
            door.send_away()
        await asyncio.sleep(self._leave_seconds if self._doors else 0)
        await asyncio.gather(*(door.close() for door in self._doors.values()))
        await self._session.close()

    async def see_resource(self, key: Key, resource: Json | None) -> None:
        """Take in a QwenDeployment as it is; None for one that is gone."""
        guest = read_guest(resource) if resource is not None else None
        door = self._doors.get(key)
        if guest is None:
            await self._see_off(key)
        elif door is None:
            door = Door(guest, self._session, lambda: self._mark(key))
            await door.open("::" if ":" in self._address else "0.0.0.0")
            self._doors[key] = door  # only now: a slice may be seen meanwhile
            self._lead(key)
        else:
            door.guest = guest

    def see_slice(self, found: Json, *, is_gone: bool) -> None:
        """Take in an EndpointSlice of some QwenDeployment's Service."""
        metadata = found["metadata"]
        key = (metadata["namespace"], (metadata.get("labels") or {}).get(SERVICE_LABEL, ""))
        known = self._slices.setdefault(key, {})
        if is_gone:
            known.pop(metadata["name"], None)
            if (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER:
                self._applied.pop(key, None)
        else:
            known[metadata["name"]] = found
            if metadata["name"] == slice_name(key[1]) and activator_of(found) is None:
                self._applied.pop(key, None)  # another left after this one had come
        if not known:
            del self._slices[key]
        self._lead(key)

    def _lead(self, key: Key) -> None:
        if door := self._doors.get(key):
            door.lead_to(ready_endpoints(self._slices.get(key, {}).values()))
            self._mark(key)

    async def _see_off(self, key: Key) -> None:
        door = self._doors.pop(key, None)
        self._applied.pop(key, None)
        for live in tuple(self._slices.get(key, {}).values()):
            if (live["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER:
                await self._cluster.delete({"kind": "EndpointSlice", **live})
        if door is not None:
            await door.close()

    def _mark(self, key: Key) -> None:
        self._dirty.add(key)
        self._wake.set()

    def check_alive(self) -> str:
        """Return how many are served.

        Raises:
            OperatorError: slices are not applied any more; the process should be restarted.
        """
        if self._task is None or (self._task.done() and not self._is_stopping):
            raise OperatorError("no EndpointSlice is applied: the task that does it is not there")
        return f"{len(self._doors)} QwenDeployments"

    async def _publish(self) -> None:
        while True:
            waits = any(door.waiting for door in self._doors.values())
            try:
                async with asyncio.timeout(RENEW_SECONDS if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                self._dirty |= {key for key, door in self._doors.items() if door.waiting}
            self._wake.clear()
            for key in tuple(self._dirty):
                self._dirty.discard(key)
                if not await self._apply(key):
                    self._mark(key)
                    await asyncio.sleep(_AGAIN_SECONDS)

    def _is_succeeded(self, key: Key) -> bool:
        """Say whether another activator, a younger one, has taken a slice over from this."""
        live = self._slices.get(key, {}).get(slice_name(key[1]))
        return key in self._applied and activator_of(live) not in (None, self._address)

    async def _apply(self, key: Key) -> bool:
        """Apply one slice if it is another than before; return whether all is well."""
        door = self._doors.get(key)
        if door is None or self._is_succeeded(key):
            return True
        now = self._today().strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = build_slice(
            door.guest.metadata,
            address=self._address,
            port=door.port,
            is_routed=not door.has_endpoints,
            waiting_at=now if door.waiting and not self._is_stopping else None,
            is_leaving=self._is_stopping,
        )
        if wanted == self._applied.get(key):
            return True
        try:
            await self._cluster.apply(wanted)
        except ApiError as error:
            logger.warning("%s/%s: its EndpointSlice: %s", *key, error)
            return False
        self._applied[key] = wanted
        logger.info("%s/%s: %s", *key, "routed here" if wanted["endpoints"] else "left to its pods")
        return True
