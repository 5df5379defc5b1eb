"""Fetches what `image_url` and `video_url` name, for a client that must not be trusted.

A server that fetches addresses on request can be sent to what only it can reach: the cloud's
metadata service, the cluster's own APIs, itself (OWASP, server-side request forgery). So each
connection is checked where it is opened, by the address that it goes to: names that resolve to
private addresses, redirects to them and spellings of them all end there. Bytes, time and
redirects are bounded. Knows nothing of pictures.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote_to_bytes

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from qwen_engine.errors import InvalidMediaError
from qwen_engine.server.settings import MIB, IPNetwork

CHUNK_BYTES = 64 * 1024
FETCH_SECONDS = 20.0
# Decoded at once: that holds the interpreter lock, for which the engine's steps would wait.
BASE64_BYTES = MIB  # a multiple of 4
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """What may be fetched, and how much of it.

    Attributes:
        hosts: the only ones that may be asked, each with those below it; None: all.
        private_networks: those among the addresses not of the public internet that may be asked.
        timeout_seconds: for one item, with all its redirects.
    """

    hosts: frozenset[str] | None = None
    private_networks: tuple[IPNetwork, ...] = ()
    max_bytes: int = 64 * MIB
    max_redirects: int = 3
    timeout_seconds: float = FETCH_SECONDS
    max_connections: int = 256
    max_connections_per_host: int = 8  # so that a slow host keeps waiting only its own

    def allows_host(self, host: str) -> bool:
        name = host.rstrip(".").lower()
        if self.hosts is None:
            return True
        return any(name == known or name.endswith(f".{known}") for known in self.hosts)

    def allows_address(self, address: IPAddress) -> bool:
        inner = _inner_address(address)
        if any(inner in network for network in self.private_networks):
            return True
        return inner.is_global and not inner.is_multicast


class _RefusedAddressError(OSError):
    """A connection to an address that the policy does not allow."""


class MediaFetcher:
    """An HTTP client under a policy; an asynchronous context manager."""

    def __init__(self, policy: FetchPolicy, *, resolver: AbstractResolver | None = None) -> None:
        self._policy = policy
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            limit=self._policy.max_connections,
            limit_per_host=self._policy.max_connections_per_host,
            force_close=True,  # a connection that is kept would not be checked again
            happy_eyeballs_delay=None,  # one address at a time, so that the error is its own
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a compressed answer could be a bomb; pictures are so already
            trust_env=False,  # a proxy would connect on our behalf, unchecked
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            headers={"Accept-Encoding": "identity", "User-Agent": "qwen-engine"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, url: str, *, item: str) -> bytes:
        """Return the bytes behind a data, http or https address.

        item: what the client called it, for the error.

        Raises:
            InvalidMediaError: not allowed, not there, too large, too slow.
        """
        if url[:5].lower() == "data:":
            return self.decode(url, item=item)
        limit = self._policy.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._follow(_parse(url, item), item)
        except TimeoutError as error:
            raise InvalidMediaError(
                item, f"{_shown(url)} did not answer in full within {limit:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise InvalidMediaError(item, _explain(error, url)) from error

    def decode(self, url: str, *, item: str) -> bytes:
        """Return the bytes that a data address carries; any thread may call it.

        Raises:
            InvalidMediaError: without a comma, wrong base64, too large.
        """
        return decode_data_url(url, self._policy, item=item)

    async def _follow(self, url: URL, item: str) -> bytes:
        assert self._session is not None
        for _ in range(self._policy.max_redirects + 1):
            self._check_url(url, item)
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, item)
                url = url.join(_parse(response.headers.get("Location", ""), item, relative=True))
        raise InvalidMediaError(
            item, f"more than {self._policy.max_redirects} redirects: give the address they lead to"
        )

    async def _read(self, response: aiohttp.ClientResponse, item: str) -> bytes:
        shown = _shown(str(response.url))
        if response.status != 200:
            raise InvalidMediaError(item, f"{shown} answered {response.status} {response.reason}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise InvalidMediaError(item, f"{shown} sends it compressed, which is not accepted")
        limit = self._policy.max_bytes
        content = bytearray()
        if (response.content_length or 0) <= limit:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                content += chunk
                if len(content) > limit:
                    break
            else:
                return bytes(content)
        raise InvalidMediaError(item, f"{shown} is larger than the {limit:,} bytes that are taken")

    def _check_url(self, url: URL, item: str) -> None:
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidMediaError(
                item, f"{_shown(str(url))}: only http, https and data addresses are fetched"
            )
        if url.user is not None or url.password is not None:
            raise InvalidMediaError(item, "a name or password in the address is not accepted")
        if not self._policy.allows_host(url.host):
            raise InvalidMediaError(
                item, f"this server does not fetch from {url.host} (--allowed-media-domains)"
            )

    def _open_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """Open a socket to an address; the one way that connections of this client begin."""
        family, kind, protocol, _, address = info
        host = str(address[0])
        if not self._policy.allows_address(ipaddress.ip_address(host.partition("%")[0])):
            raise _RefusedAddressError(host)
        return socket.socket(family, kind, protocol)


def decode_data_url(url: str, policy: FetchPolicy, *, item: str) -> bytes:
    """Return the bytes that a data address carries (RFC 2397).

    Raises:
        InvalidMediaError: without a comma, wrong base64, too large.
    """
    head, comma, body = url.partition(",")
    if not comma:
        raise InvalidMediaError(item, "a data address without a comma: data:image/png;base64,…")
    if len(body) * 3 // 4 > policy.max_bytes:
        raise InvalidMediaError(item, f"is larger than the {policy.max_bytes:,} bytes taken")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        plain = body.encode("ascii") if "%" not in body else unquote_to_bytes(body)
        starts = range(0, len(plain), BASE64_BYTES)
        pieces = (plain[start : start + BASE64_BYTES] for start in starts)
        return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except (binascii.Error, ValueError) as error:
        raise InvalidMediaError(item, f"is not base64: {error}") from error


def parse_networks(texts: Collection[str]) -> tuple[IPNetwork, ...]:
    """Read networks as `10.0.0.0/8`. Raises ValueError."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def _inner_address(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that an IPv6 one only wraps, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052


def _parse(text: str, item: str, *, relative: bool = False) -> URL:
    try:
        url = URL(text)
        if relative or url.absolute:
            return url
    except ValueError:
        pass
    raise InvalidMediaError(item, f"{_shown(text)!r} is not an address (https://… or data:…)")


def _explain(error: aiohttp.ClientError, url: str) -> str:
    cause = getattr(error, "os_error", None)
    if isinstance(cause, _RefusedAddressError):
        # Which address it was is not said: it would tell what names inside the cluster resolve to.
        why = "is at an address that this server does not connect to (--allowed-media-networks)"
        return f"{_shown(url)} {why}"
    if isinstance(error, aiohttp.InvalidURL):
        return f"{_shown(url)} is not an address that can be fetched"
    return f"{_shown(url)} cannot be fetched: {type(error).__name__}"


def _shown(url: str) -> str:
    """Return an address for an error: short, and without what may be a secret."""
    plain = url.partition("?")[0]
    return plain if len(plain) <= 100 else f"{plain[:100]}…"
