"""Reads objects from the API server in a millisecond, where kubectl takes a hundred.

For polling and timing only: whatever a user would do goes through kubectl.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.cluster.client import Cluster

_ROOTS = {
    "qwen": ("apis/qwenoperator.io/v1alpha1", "qwendeployments"),
    "deployment": ("apis/apps/v1", "deployments"),
    "replicaset": ("apis/apps/v1", "replicasets"),
    "service": ("api/v1", "services"),
    "serviceaccount": ("api/v1", "serviceaccounts"),
    "pod": ("api/v1", "pods"),
    "event": ("api/v1", "events"),
    "endpointslice": ("apis/discovery.k8s.io/v1", "endpointslices"),
    "scaledobject": ("apis/keda.sh/v1alpha1", "scaledobjects"),
    "pdb": ("apis/policy/v1", "poddisruptionbudgets"),
    "networkpolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "hpa": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
}


class ApiReader:
    """The API server's objects of one namespace, by kind."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        config = json.loads(cluster.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        authority = base64.b64decode(server["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        token = config["users"][0]["user"]["token"]
        self._opener.addheaders = [("Authorization", f"Bearer {token}")]
        self._server, self._namespace = server["server"], namespace

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object, or {} if there is none."""
        try:
            return self._read(f"{self._path(kind)}/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        found: list[dict[str, Any]] = self._read(self._path(kind))["items"]
        return found

    def create(self, kind: str, manifest: dict[str, Any]) -> None:
        """Create an object at once, for who measures what follows."""
        request = urllib.request.Request(
            f"{self._server}/{self._path(kind)}",
            json.dumps(manifest).encode(),
            {"Content-Type": "application/json"},
        )
        self._opener.open(request, timeout=10).close()

    def _path(self, kind: str) -> str:
        root, plural = _ROOTS[kind]
        return f"{root}/namespaces/{self._namespace}/{plural}"

    def _read(self, path: str) -> dict[str, Any]:
        with self._opener.open(f"{self._server}/{path}", timeout=10) as response:
            found: dict[str, Any] = json.load(response)
            return found
