"""Addresses are fetched within bounds, and never from where only the server can reach."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from qwen_engine.errors import InvalidMediaError
from qwen_engine.server.media_fetch import FetchPolicy, MediaFetcher, parse_networks

LOOPBACK = parse_networks(["127.0.0.0/8"])
CONTENT = b"picture" * 100


class Names(AbstractResolver):
    """A resolver that knows these names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.names[host]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


async def _answer(request: web.Request) -> web.StreamResponse:
    what = request.match_info["what"]
    if what == "picture":
        return web.Response(body=CONTENT)
    if what == "to":
        return web.Response(status=302, headers={"Location": request.query["url"]})
    if what == "loop":
        return web.Response(status=307, headers={"Location": "/loop"})
    if what == "compressed":
        return web.Response(body=CONTENT, headers={"Content-Encoding": "gzip"})
    if what == "agent":
        return web.Response(text=request.headers["User-Agent"])
    if what in ("endless", "stuck"):
        response = web.StreamResponse()
        await response.prepare(request)
        while what == "endless":
            await response.write(bytes(10_000))
        await asyncio.Event().wait()
    raise web.HTTPNotFound


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    app = web.Application()
    app.router.add_get("/{what}", _answer)
    async with TestServer(app) as server:
        yield server


async def fetch(url: object, *, names: dict[str, str] | None = None, **policy: Any) -> bytes:
    resolver = Names(names) if names else None
    async with MediaFetcher(FetchPolicy(**policy), resolver=resolver) as fetcher:
        return await fetcher.fetch(str(url), item="image 1")


async def refusal(url: object, *, names: dict[str, str] | None = None, **policy: Any) -> str:
    with pytest.raises(InvalidMediaError, match="image 1: ") as caught:
        await fetch(url, names=names, **policy)
    return str(caught.value)


async def test_what_is_there_is_fetched(server: TestServer) -> None:
    assert await fetch(server.make_url("/picture"), private_networks=LOOPBACK) == CONTENT


async def test_redirects_are_followed_so_far(server: TestServer) -> None:
    relative = server.make_url("/to").with_query(url="/picture")
    assert await fetch(relative, private_networks=LOOPBACK) == CONTENT
    message = await refusal(server.make_url("/loop"), private_networks=LOOPBACK)
    assert "more than 3 redirects" in message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
async def test_the_server_itself_is_not_asked(server: TestServer, host: str) -> None:
    message = await refusal(f"http://{host}:{server.port}/picture")
    assert "does not connect to" in message


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
async def test_other_spellings_of_an_address_do_not_help(server: TestServer, host: str) -> None:
    await refusal(f"http://{host}:{server.port}/picture")


@pytest.mark.parametrize("address", [
    "169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.53",
    "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.18.0.1", "::1", "::", "fe80::1",
    "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "ff02::1",
])  # fmt: skip
async def test_a_name_that_resolves_to_a_private_address_is_refused(address: str) -> None:
    assert not FetchPolicy().allows_address(ipaddress.ip_address(address))
    message = await refusal("http://evil.example/x", names={"evil.example": address})
    assert "does not connect to" in message
    assert address not in message


def test_public_addresses_are_allowed() -> None:
    for address in ("1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"):
        assert FetchPolicy().allows_address(ipaddress.ip_address(address))


async def test_a_redirect_to_a_private_address_is_refused(server: TestServer) -> None:
    names = {"public.example": "127.0.0.1", "inner.example": "127.0.9.9"}
    url = f"http://public.example:{server.port}/to?url=http://inner.example:{server.port}/picture"
    message = await refusal(url, names=names, private_networks=parse_networks(["127.0.0.1/32"]))
    assert "does not connect to" in message
    message = await refusal(
        server.make_url("/to").with_query(url="file:///etc/passwd"), private_networks=LOOPBACK
    )
    assert "only http, https and data" in message


async def test_only_hosts_of_the_list_are_asked(server: TestServer) -> None:
    names = {"cdn.good.example": "127.0.0.1", "evilgood.example": "127.0.0.1"}
    policy = {"private_networks": LOOPBACK, "hosts": frozenset({"good.example"})}
    url = f"http://cdn.good.example:{server.port}/picture"
    assert await fetch(url, names=names, **policy) == CONTENT
    message = await refusal(url.replace("cdn.good", "evilgood"), names=names, **policy)
    assert "--allowed-media-domains" in message
    redirect = (
        f"http://cdn.good.example:{server.port}/to?url=http://evilgood.example:{server.port}/"
    )
    assert "evilgood.example" in await refusal(redirect, names=names, **policy)


async def test_an_answer_that_never_ends_is_cut_by_its_size(server: TestServer) -> None:
    policy = {"private_networks": LOOPBACK, "max_bytes": 100_000}
    assert "100,000 bytes" in await refusal(server.make_url("/endless"), **policy)
    policy["max_bytes"] = 100
    assert "100 bytes" in await refusal(server.make_url("/picture"), **policy)


async def test_an_answer_that_never_comes_is_cut_by_time(server: TestServer) -> None:
    policy = {"private_networks": LOOPBACK, "timeout_seconds": 0.05}
    assert "within 0.05 s" in await refusal(server.make_url("/stuck"), **policy)


async def test_what_is_not_there_or_compressed_is_said(server: TestServer) -> None:
    assert "404" in await refusal(server.make_url("/gone"), private_networks=LOOPBACK)
    message = await refusal(server.make_url("/compressed"), private_networks=LOOPBACK)
    assert "compressed" in message
    closed = await refusal("http://127.0.0.1:9/x?token=secret", private_networks=LOOPBACK)
    assert "secret" not in closed


async def test_a_proxy_of_the_environment_is_not_used(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    await refusal("http://169.254.169.254/picture", private_networks=LOOPBACK)


@pytest.mark.parametrize("url", [
    "file:///etc/passwd", "ftp://x/y", "gopher://x", "//x/y", "picture.png", "", "http://", "http:///x",
    "http://user:pw@example.com/", "http://[::1", "javascript:alert(1)",
])  # fmt: skip
async def test_other_addresses_are_refused(url: str) -> None:
    assert "image 1: " in await refusal(url)


async def test_data_addresses_carry_their_bytes() -> None:
    text = base64.b64encode(CONTENT).decode()
    assert await fetch(f"data:image/png;base64,{text}") == CONTENT
    assert await fetch(f"DATA:image/png;charset=x;BASE64,{text}") == CONTENT
    assert await fetch("data:,a%20b") == b"a b"
    assert "not base64" in await refusal("data:image/png;base64,@@@@")
    assert "not base64" in await refusal("data:image/png;base64,abc")
    assert "without a comma" in await refusal("data:image/png;base64")
    assert "100 bytes" in await refusal(f"data:image/png;base64,{text}", max_bytes=100)
