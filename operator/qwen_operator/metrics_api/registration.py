"""Keeps the metrics API registered: the APIService, its authority, the listener's certificates.

Called by `controller` every few seconds. An APIService that belongs to another adapter is left
alone: who needs which is for people to decide, and two would take it from each other for ever.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qwen_operator import names
from qwen_operator.cluster import API_SERVICE, CLUSTER_ROLE, CONFIG_MAP, Cluster
from qwen_operator.errors import RefusedError
from qwen_operator.metrics_api import front_proxy
from qwen_operator.metrics_api.answers import GROUP, VERSION
from qwen_operator.metrics_api.certificates import Certificates, bundle, make_certificates
from qwen_operator.metrics_api.front_proxy import FrontProxy, NoFrontProxyError, parse_front_proxy
from qwen_operator.metrics_api.server import MetricsServer
from qwen_operator.pods import Problem

Json = Mapping[str, Any]
NAME = f"{VERSION}.{GROUP}"
_OTHER_WAYS = (
    "scale with it instead (KEDA: set spec.autoscaling.provider to KEDA; prometheus-adapter: an "
    "external rule on qwen_kv_blocks and an HPA of your own, with provider None), or remove it and "
    "this operator takes its place"
)
_PRIORITY = 100
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The Service through which the API server reaches this operator.

    Attributes:
        owner: the ClusterRole with which the APIService is to go; empty for none.
    """

    namespace: str
    service: str
    port: int = 443
    owner: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that the serving certificate must bear."""
        name = f"{self.service}.{self.namespace}"
        return f"{name}.svc", name, f"{name}.svc.cluster.local"


class MetricsApi:
    """The registration; `problem` says why figures do not reach an HPA, if they do not."""

    def __init__(
        self, cluster: Cluster, place: Place, server: MetricsServer, clock: Callable[[], datetime]
    ) -> None:
        self._cluster, self._place = cluster, place
        self._server, self._clock = server, clock
        self._certificates: Certificates | None = None  # to be served
        self._served: tuple[Certificates, FrontProxy] | None = None
        self.problem: Problem | None = Problem("Starting", "the metrics API is being registered")

    async def check(self) -> bool:
        """Make everything as it must be; return whether `problem` is another than before."""
        before = self.problem
        try:
            self.problem = await self._check()
        except NoFrontProxyError as error:
            self.problem = Problem("NoAggregationLayer", str(error))
        except RefusedError as error:
            self.problem = Problem("MetricsApiRefused", f"{error}: give the operator that right")
        except (OSError, ssl.SSLError) as error:
            self.problem = Problem("MetricsApiFailed", f"the metrics API cannot listen: {error}")
        if self.problem != before:
            logger.info("metrics API: %s", self.problem.message if self.problem else "registered")
        return self.problem != before

    async def close(self) -> None:
        """Stop serving; the APIService stays for the next operator."""
        await self._server.close()

    async def _check(self) -> Problem | None:
        live = await self._cluster.fetch(API_SERVICE, None, NAME)
        if live is not None and (found := other_adapter(live, self._place)):
            return Problem("MetricsApiTaken", f"{NAME} is served by {found}: {_OTHER_WAYS}")
        published = await self._cluster.fetch(CONFIG_MAP, front_proxy.NAMESPACE, front_proxy.NAME)
        trusted = await self._serve(parse_front_proxy(published), live)
        owner = await self._cluster.fetch(CLUSTER_ROLE, None, self._place.owner or "-")
        desired = build_api_service(self._place, trusted, owner)
        if live is None or not _is_same(live, desired):
            await self._cluster.apply(desired)
            return None
        return _unreachable(live)

    async def _serve(self, proxy: FrontProxy, live: Json | None) -> bytes:
        """Listen with the right certificates; return the authorities that must be trusted.

        New ones are served only once the API server has been told to trust them.
        """
        now = self._clock()
        if self._certificates is None or self._certificates.is_due(now):
            self._certificates = make_certificates(self._place.hosts, now)
        coming, served = self._certificates, self._served
        if served is None or served[0] is coming or coming.authority in _trusted(live):
            if served != (coming, proxy):
                await self._server.listen(coming, proxy)
                self._served = (coming, proxy)
            return bundle(coming)
        if served[1] != proxy:
            await self._server.listen(served[0], proxy)
            self._served = (served[0], proxy)
        return bundle(coming, served[0])


def other_adapter(live: Json, place: Place) -> str | None:
    """Return which other Service an APIService belongs to; None if it is ours."""
    service = live["spec"].get("service") or {}
    where = (service.get("namespace"), service.get("name"))
    if where == (place.namespace, place.service):
        return None
    return "{}/{}".format(*where) if service else "the API server itself"


def build_api_service(place: Place, trusted: bytes, owner: Json | None) -> dict[str, Any]:
    """Return the APIService; it is deleted with its owner, when the chart is uninstalled."""
    metadata: dict[str, Any] = {
        "name": NAME,
        "labels": {
            "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
            "app.kubernetes.io/part-of": "qwen-operator",
        },
    }
    if owner is not None:
        reference = {key: owner["metadata"][key] for key in ("name", "uid")}
        kind = {"apiVersion": CLUSTER_ROLE.api_version, "kind": CLUSTER_ROLE.kind}
        metadata["ownerReferences"] = [{**kind, **reference}]
    return {
        "apiVersion": API_SERVICE.api_version,
        "kind": API_SERVICE.kind,
        "metadata": metadata,
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": _PRIORITY,
            "versionPriority": _PRIORITY,
            "service": {"namespace": place.namespace, "name": place.service, "port": place.port},
            "caBundle": base64.b64encode(trusted).decode(),
        },
    }


def _trusted(live: Json | None) -> bytes:
    return base64.b64decode(((live or {}).get("spec") or {}).get("caBundle") or "")


def _is_same(live: Json, desired: Json) -> bool:
    owners = [o["uid"] for o in live["metadata"].get("ownerReferences") or ()]
    wanted = [o["uid"] for o in desired["metadata"].get("ownerReferences") or ()]
    spec = live["spec"]
    return owners == wanted and all(spec.get(k) == v for k, v in desired["spec"].items())


def _unreachable(live: Json) -> Problem | None:
    conditions = (live.get("status") or {}).get("conditions") or ()
    found: Json = next((c for c in conditions if c["type"] == "Available"), {})
    if found.get("status") != "False":
        return None
    words = " ".join(str(found.get("message", "")).split())[:300]
    return Problem("MetricsApiUnreachable", f"the API server cannot reach the operator: {words}")
