"""Who may ask: the API server's aggregator, known by its client certificate.

The API server authenticates and authorises users, then asks on their behalf with the certificate
whose authority and names it publishes in a ConfigMap.
https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_operator.errors import OperatorError

Json = Mapping[str, Any]
NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
_AUTHORITY, _ALLOWED = "requestheader-client-ca-file", "requestheader-allowed-names"


class NoFrontProxyError(OperatorError):
    """The API server publishes no front proxy, so nobody could be told from anybody."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The authority of the front proxy's certificate (PEM) and its names; none means any."""

    authority: str
    allowed_names: tuple[str, ...]

    def refusal(self, certificate: Json | None) -> str | None:
        """Return why the bearer of a verified client certificate is not let in; None if it is.

        Args:
            certificate: as `ssl.SSLSocket.getpeercert` returns it; empty where none was shown.
        """
        if not certificate:
            return "only the API server's aggregation layer may ask: show its client certificate"
        pairs = [pair for part in certificate.get("subject", ()) for pair in part]
        name = next((value for key, value in pairs if key == "commonName"), "")
        if self.allowed_names and name not in self.allowed_names:
            return f"the client certificate's name {name[:64]!r} is not one of the front proxy's"
        return None


def parse_front_proxy(config_map: Json | None) -> FrontProxy:
    """Read the ConfigMap that the API server publishes.

    Raises:
        NoFrontProxyError: it is not there, or holds no authority.
    """
    data = (config_map or {}).get("data") or {}
    authority = data.get(_AUTHORITY, "")
    if "BEGIN CERTIFICATE" not in authority:
        raise NoFrontProxyError(
            f"ConfigMap {NAMESPACE}/{NAME} has no {_AUTHORITY}: the API server runs without an "
            "aggregation layer; start it with --requestheader-client-ca-file"
        )
    try:
        names = json.loads(data.get(_ALLOWED) or "[]")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NoFrontProxyError(f"ConfigMap {NAMESPACE}/{NAME}: {_ALLOWED} is no list of names")
    return FrontProxy(authority, tuple(names))
