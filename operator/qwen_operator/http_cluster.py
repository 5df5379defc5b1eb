"""The Cluster protocol over HTTP.

Made by `__main__`. aiohttp on the credentials that kopf finds, rather than the official client:
kopf brings aiohttp anyway, one event loop needs no thread pool, and the image stays small.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from qwen_operator import names
from qwen_operator.cluster import EVENT, KINDS, QWEN_DEPLOYMENT, Kind
from qwen_operator.errors import ApiError, RefusedError, UnavailableError

Json = Mapping[str, Any]
_TIMEOUT_SECONDS = 20
_PAGE = 500  # objects of a list in one answer
_APPLY = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML
_MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and how to be let in."""

    server: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None


class HttpCluster:
    """The Kubernetes API over one HTTP session; logs in again when its token has run out."""

    def __init__(
        self, login: Callable[[], Connection], *, field_manager: str = names.FIELD_MANAGER
    ) -> None:
        self._login = login
        self._manager = field_manager
        self._connection: Connection | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Return one object; None if there is none."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def fetch_all(
        self, kind: Kind, namespace: str | None = None, *, selector: str = ""
    ) -> list[Json]:
        """Return all objects of a kind, page by page."""
        found: list[Json] = []
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._request("GET", kind.path(namespace), query=query)
            found += page["items"]
            follow = page["metadata"].get("continue")
            if not follow:
                return found
            query["continue"] = follow

    async def serves(self, kind: Kind) -> bool:
        """Say whether the API knows a kind."""
        try:
            found = await self._request("GET", f"/apis/{kind.api_version}")
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return any(served.get("name") == kind.plural for served in found.get("resources", ()))

    async def scale(self, resource: Json, replicas: int) -> None:
        """Set a QwenDeployment's replicas; refused with 409 if it is another by now."""
        metadata = resource["metadata"]
        path = QWEN_DEPLOYMENT.path(metadata["namespace"], metadata["name"]) + "/scale"
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"replicas": replicas},
        }
        query = {"fieldManager": self._manager}
        await self._request("PATCH", path, query=query, body=body, headers=_MERGE)

    async def fetch_metric(self, namespace: str, metric: str, selector: str) -> list[Json]:
        """Return the values of an external metric, through the API server."""
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}"
        found: list[Json] = (await self._request("GET", path, query={"labelSelector": selector}))[
            "items"
        ]
        return found

    async def apply(self, manifest: Json) -> None:
        """Apply an object server-side, forcing: what the operator renders, it alone decides."""
        await self._apply(_path(manifest), manifest)

    async def delete(self, manifest: Json) -> None:
        """Delete this very object: its uid must still be the same."""
        options = {"preconditions": {"uid": manifest["metadata"]["uid"]}}
        try:
            await self._request("DELETE", _path(manifest), body=options)
        except RefusedError as error:
            if error.status not in (404, 409):
                raise

    async def annotate(
        self, kind: Kind, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str]
    ) -> None:
        """Set annotations of this very object: its uid must still be the same."""
        body = {"metadata": {"uid": uid, "annotations": annotations}}
        try:
            path = kind.path(namespace, name)
            await self._request("PATCH", path, body=body, headers=_MERGE)
        except RefusedError as error:
            if error.status not in (404, 409):
                raise

    async def apply_status(self, resource: Json, status: Json) -> None:
        """Apply a status to the very object it was made for: its uid must still be the same."""
        metadata = {key: resource["metadata"][key] for key in ("name", "namespace", "uid")}
        path = QWEN_DEPLOYMENT.path(metadata["namespace"], metadata["name"]) + "/status"
        kind = {"apiVersion": names.API_VERSION, "kind": names.KIND}
        await self._apply(path, {**kind, "metadata": metadata, "status": status})

    async def record(self, event: Json) -> None:
        """Create an Event, or count it once more."""
        metadata = event["metadata"]
        try:
            await self._request("POST", EVENT.path(metadata["namespace"]), body=event)
        except RefusedError as error:
            if error.reason != "AlreadyExists":
                raise
            before = await self.fetch(EVENT, metadata["namespace"], metadata["name"]) or {}
            again = {"count": before.get("count", 1) + 1, "lastTimestamp": event["lastTimestamp"]}
            path = EVENT.path(metadata["namespace"], metadata["name"])
            await self._request("PATCH", path, body=again, headers=_MERGE)

    async def _apply(self, path: str, body: Json) -> None:
        query = {"fieldManager": self._manager, "force": "true"}
        await self._request("PATCH", path, query=query, body=body, headers=_APPLY)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        try:
            return await self._send(method, path, query=query, body=body, headers=headers)
        except RefusedError as error:
            if error.status != 401:
                raise
            self._connection = self._login()  # the token has run out; its successor is there
            return await self._send(method, path, query=query, body=body, headers=headers)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Json | None,
        headers: Mapping[str, str] | None,
    ) -> Json:
        try:
            session, server, login = self._open()
            async with session.request(
                method, server + path, params=query, json=body, headers={**login, **(headers or {})}
            ) as response:
                if response.status >= 400:
                    raise _error(response.status, await response.text())
                answer = await response.json(content_type=None)
                return answer if isinstance(answer, dict) else {}
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            what = f"{method} {path}: {str(error) or type(error).__name__}"
            raise UnavailableError(0, "NoAnswer", what) from error

    def _open(self) -> tuple[aiohttp.ClientSession, str, Mapping[str, str]]:
        if self._connection is None:
            self._connection = self._login()
        if self._session is None or self._session.closed:
            tls = self._connection.tls
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True),
                headers={"User-Agent": self._manager},
                trust_env=True,  # HTTPS_PROXY and NO_PROXY, as kubectl does
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
            )
        return self._session, self._connection.server, self._connection.headers


def _path(manifest: Json) -> str:
    metadata = manifest["metadata"]
    return KINDS[manifest["kind"]].path(metadata.get("namespace"), metadata["name"])


def _error(status: int, answer: str) -> ApiError:
    """Read a Status object; a group that nobody serves is answered in plain words."""
    try:
        found = json.loads(answer)
    except ValueError:
        found = {}
    found = found if isinstance(found, dict) else {}
    reason, message = str(found.get("reason", "")), str(found.get("message", f"HTTP {status}"))
    if "not declared in schema" in message:
        message += (
            ". The CRD is older than this operator: kubectl apply --server-side -f "
            "crds/qwendeployments.yaml (Helm never upgrades CRDs)"
        )
    is_passing = status >= 500 or status == 429
    return (UnavailableError if is_passing else RefusedError)(status, reason, message)
