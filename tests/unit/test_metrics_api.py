"""The metrics API's parts: certificates, the front proxy, answers, the listener."""

from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509

from qwen_operator.metrics_api.answers import ROOT, Figure, answer
from qwen_operator.metrics_api.certificates import LIFETIME, bundle, make_certificates
from qwen_operator.metrics_api.front_proxy import FrontProxy, NoFrontProxyError, parse_front_proxy
from qwen_operator.metrics_api.server import MetricsServer
from tests.cluster.front_proxy import make_client

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIGURES = [Figure("ns", "chat", 3, 0.4116, "2026-01-01T00:00:00Z"),
           Figure("ns", "code", 1, None, "2026-01-01T00:00:00Z"),
           Figure("other", "chat", 7, 0.1, "2026-01-01T00:00:00Z")]  # fmt: skip
ONE = "qwenoperator.io/deployment=chat"


def ask(path: str, selector: str = "", method: str = "GET") -> tuple[int, Any]:
    return answer(method, f"{ROOT}{path}", selector, FIGURES)


def test_a_serving_certificate_is_its_authoritys_and_bears_the_services_names() -> None:
    made = make_certificates(("qwen.system.svc", "qwen.system"), NOW)
    authority = x509.load_pem_x509_certificate(made.authority)
    serving = x509.load_pem_x509_certificate(made.serving)
    serving.verify_directly_issued_by(authority)
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["qwen.system.svc", "qwen.system"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not serving.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert serving.not_valid_before_utc < NOW < serving.not_valid_after_utc == NOW + LIFETIME


def test_certificates_are_due_long_before_they_end_and_when_the_clock_went_back() -> None:
    made = make_certificates(("a.b.svc",), NOW)
    assert not made.is_due(NOW)
    assert not made.is_due(NOW + LIFETIME * 0.6)
    assert made.is_due(NOW + LIFETIME * 0.7)
    assert made.is_due(NOW - timedelta(days=2))


def test_a_very_long_service_name_still_gets_a_certificate() -> None:
    made = make_certificates((f"{'n' * 63}.{'s' * 63}.svc",), NOW)
    assert b"BEGIN CERTIFICATE" in made.serving


def test_the_bundle_holds_old_and_new() -> None:
    old, new = make_certificates(("a.b.svc",), NOW), make_certificates(("a.b.svc",), NOW)
    assert len(x509.load_pem_x509_certificates(bundle(new, old))) == 2
    assert bundle(new, None) == new.authority


def test_only_the_front_proxys_names_are_let_in() -> None:
    proxy = FrontProxy("pem", ("front-proxy-client",))
    shown = {"subject": ((("organizationName", "x"),), (("commonName", "front-proxy-client"),))}
    assert proxy.refusal(shown) is None
    assert "show its client certificate" in (proxy.refusal(None) or "")
    assert "show its client certificate" in (proxy.refusal({}) or "")
    other = {"subject": ((("commonName", "somebody"),),)}
    assert "'somebody'" in (proxy.refusal(other) or "")
    assert FrontProxy("pem", ()).refusal(other) is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"requestheader-client-ca-file": ""},
        {
            "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----",
            "requestheader-allowed-names": "front-proxy-client",
        },
    ],
)
def test_without_a_front_proxy_there_is_an_error_that_says_what_is_missing(data: Any) -> None:
    with pytest.raises(NoFrontProxyError, match="extension-apiserver-authentication"):
        parse_front_proxy(None if data is None else {"data": data})


def test_discovery_lists_the_metrics() -> None:
    status, body = ask("")
    assert (status, body["kind"], body["groupVersion"]) == (
        200, "APIResourceList", "external.metrics.k8s.io/v1beta1",
    )  # fmt: skip
    assert [r["name"] for r in body["resources"]] == [
        "qwen_replicas_needed",
        "qwen_free_block_ratio",
    ]


def test_a_value_is_that_of_the_deployment_the_selector_names() -> None:
    status, body = ask("/namespaces/ns/qwen_replicas_needed", ONE)
    assert (status, body["kind"]) == (200, "ExternalMetricValueList")
    assert [item["value"] for item in body["items"]] == ["3"]
    assert body["items"][0]["metricLabels"] == {"qwenoperator.io/deployment": "chat"}
    assert [i["value"] for i in ask("/namespaces/ns/qwen_free_block_ratio")[1]["items"]] == ["412m"]
    assert len(ask("/namespaces/ns/qwen_replicas_needed")[1]["items"]) == 2
    # none is known: an HPA calls that a failed metric, and holds
    assert ask("/namespaces/none/qwen_replicas_needed", ONE)[1]["items"] == []


@pytest.mark.parametrize(
    ("path", "selector", "method", "code", "words"),
    [
        ("/namespaces/ns/cpu", "", "GET", 404, "there are qwen_replicas_needed"),
        ("/namespaces/ns", "", "GET", 404, "nothing at"),
        ("/nodes/ns/qwen_replicas_needed", "", "GET", 404, "nothing at"),
        ("/namespaces/ns/qwen_replicas_needed", "a in (b,c)", "GET", 400, "only label=value"),
        ("/namespaces/ns/qwen_replicas_needed", "a!=b", "GET", 400, "only label=value"),
        ("/namespaces/ns/qwen_replicas_needed", "", "DELETE", 405, "can only be read"),
    ],
)
def test_what_is_not_there_is_told_as_a_status_object(
    path: str, selector: str, method: str, code: int, words: str
) -> None:
    status, body = ask(path, selector, method)
    assert (status, body["kind"], body["status"], body["code"]) == (code, "Status", "Failure", code)
    assert words in body["message"]


async def test_the_listener_answers_the_front_proxy_and_nobody_else(tmp_path: Path) -> None:
    made = make_certificates(("localhost",), datetime.now(UTC))
    trusted, client = make_client(tmp_path / "proxy", "front-proxy-client")
    _, stranger = make_client(tmp_path / "stranger", "front-proxy-client")
    port = _free_port()
    server = MetricsServer(port, lambda: FIGURES)
    await server.listen(made, FrontProxy(trusted, ("front-proxy-client",)))
    try:
        url = f"https://localhost:{port}{ROOT}/namespaces/ns/qwen_replicas_needed"
        status, body = await _get(f"{url}?labelSelector={ONE}", made.authority, client)
        assert (status, body["items"][0]["value"]) == (200, "3")
        status, body = await _get(url, made.authority, None)
        assert (status, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await _get(url, made.authority, stranger)

        renewed = make_certificates(("localhost",), datetime.now(UTC))
        await server.listen(renewed, FrontProxy(trusted, ()))
        assert (await _get(url, renewed.authority, client))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await _get(url, made.authority, client)
    finally:
        await server.close()


async def _get(url: str, authority: bytes, client: Path | None) -> tuple[int, Any]:
    context = ssl.create_default_context(cadata=authority.decode())
    if client is not None:
        context.load_cert_chain(client)
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status, json.loads(await response.text())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
