"""Reads of the API server by path, with nothing but the standard library.

Called while a cluster comes up and by its DNS server; tests use client.Cluster.
"""

import ssl
import urllib.error
import urllib.request
from pathlib import Path


class ApiClient:
    """The API server at one address, as its administrator."""

    def __init__(self, server: str, *, token: str, authority: Path) -> None:
        self._server, self._token, self._authority = server, token, authority

    def get(self, path: str) -> bytes | None:
        """Return the body at `path`, None while it can't be had."""
        if not self._authority.exists():
            return None
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._server + path, headers=headers)
        # a proxy from the environment must not come between us and our own machine
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(
                context=ssl.create_default_context(cafile=str(self._authority))
            ),
        )
        try:
            with opener.open(request, timeout=5) as response:
                body: bytes = response.read()
                return body
        except (OSError, ssl.SSLError, urllib.error.URLError):
            return None  # not listening yet, certificate half written, or not ready
