"""Where a QwenDeployment's requests can go, and how they are held. Pure.

Called by `reception` with what the watches tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qwen_operator.activation import MANAGED_BY, MANAGER
from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec_autoscaling import Hold, parse_autoscaling
from qwen_operator.spec_fields import parse_object

Json = Mapping[str, Any]
_START_SECONDS = 30  # of a pod, where none was measured yet


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready pod's address."""

    host: str
    port: int

    @property
    def origin(self) -> str:
        """The URL without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Guest:
    """A QwenDeployment whose requests are held.

    Attributes:
        start_seconds: how long the last start took.
    """

    metadata: Json
    model: str
    hold: Hold
    start_seconds: int


def read_guest(resource: Json) -> Guest | None:
    """Return how requests are held; None where none are: it never goes to zero."""
    try:
        spec = parse_autoscaling(parse_object(resource["spec"], "autoscaling"))
    except InvalidSpecError:
        return None  # status says so
    if spec is None or spec.min_replicas > 0 or resource["metadata"].get("deletionTimestamp"):
        return None
    status = (resource.get("status") or {}).get("autoscaling") or {}
    starts = status.get("coldStartSeconds") or [_START_SECONDS]
    model = resource["spec"]["model"]["id"]
    return Guest(resource["metadata"], model, spec.hold, max(1, int(starts[-1])))


def ready_endpoints(slices: Iterable[Json]) -> tuple[Endpoint, ...]:
    """Return the ready pods of a Service's EndpointSlices, the activator's own left out."""
    return tuple(
        Endpoint(address, port["port"])
        for found in slices
        if (found["metadata"].get("labels") or {}).get(MANAGED_BY) != MANAGER
        for port in (found.get("ports") or ())[:1]
        for endpoint in found.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True) is not False
        for address in endpoint["addresses"][:1]
    )
