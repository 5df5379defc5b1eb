"""How to reach the API server: the pod's service account, or what KUBECONFIG says.

Called by `__main__`, `handlers` and the activator.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping

import kopf

from qwen_operator.http_cluster import Connection

logger = logging.getLogger(__name__)


def find_credentials() -> kopf.ConnectionInfo:
    """Return the pod's service account, or what KUBECONFIG says.

    Raises:
        kopf.LoginError: there is neither.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings)
    if found is not None:
        server = _server(os.environ) or found.server
        return dataclasses.replace(found, server=server, trust_env=True)
    if found is None:
        # the official client, where it happens to be installed, also runs exec plugins
        found = kopf.login_via_client(logger=logger, settings=settings)
    if found is None:
        found = kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise kopf.LoginError("neither a service account nor KUBECONFIG gives access to a cluster")
    return dataclasses.replace(found, trust_env=True)  # HTTPS_PROXY and NO_PROXY, as kubectl does


def _server(env: Mapping[str, str]) -> str | None:
    """Return the API server's address as every pod is told it: names would need a working DNS."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def connect() -> Connection:
    """Log in and return where the API server is, in this operator's own words."""
    found = find_credentials()
    tls = found.as_ssl_context() if found.server.startswith("https:") else None
    return Connection(found.server.rstrip("/"), found.as_http_headers(), tls)
