"""The metrics API's registration: the APIService, its authorities, renewal, and other adapters."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509

from qwen_operator import cluster as api
from qwen_operator.cluster import Kind
from qwen_operator.errors import ApiError, RefusedError
from qwen_operator.metrics_api.certificates import LIFETIME, Certificates
from qwen_operator.metrics_api.front_proxy import FrontProxy
from qwen_operator.metrics_api.registration import MetricsApi, Place
from qwen_operator.metrics_api.server import MetricsServer

PLACE = Place("system", "qwen-metrics", owner="system-qwen-metrics")
PUBLISHED = {
    "data": {
        "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----",
        "requestheader-allowed-names": '["front-proxy-client"]',
    }
}


class Stand(MetricsServer):
    """Takes the server's and the cluster's place; `listening` is what was served, in order."""

    def __init__(self) -> None:
        super().__init__(0, list)
        self.listening: list[tuple[Certificates, FrontProxy]] = []
        self.objects: dict[str, Any] = {"ConfigMap": PUBLISHED}
        self.error: ApiError | OSError | None = None
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.api = MetricsApi(self, PLACE, self, lambda: self.now)  # type: ignore[arg-type]

    async def listen(self, certificates: Certificates, front_proxy: FrontProxy) -> None:
        if isinstance(self.error, OSError):
            raise self.error
        self.listening.append((certificates, front_proxy))

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Any:
        return self.objects.get(kind.kind)

    async def apply(self, manifest: Mapping[str, Any]) -> None:
        if isinstance(self.error, ApiError):
            raise self.error
        self.objects[manifest["kind"]] = manifest

    @property
    def bundle(self) -> bytes:
        """The authorities that the API server was told to trust."""
        return base64.b64decode(self.objects["APIService"]["spec"]["caBundle"])

    @property
    def reason(self) -> str | None:
        """The problem's reason."""
        return self.api.problem.reason if self.api.problem else None


async def test_it_listens_first_and_registers_then_with_its_authority_and_owner() -> None:
    stand = Stand()
    stand.objects["ClusterRole"] = {"metadata": {"name": PLACE.owner, "uid": "u1"}}
    assert stand.reason == "Starting"
    assert await stand.api.check() is True
    assert stand.reason is None
    [(certificates, proxy)] = stand.listening
    assert proxy.allowed_names == ("front-proxy-client",)
    manifest = stand.objects["APIService"]
    assert manifest["metadata"]["name"] == "v1beta1.external.metrics.k8s.io"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u1"
    service = {"namespace": "system", "name": "qwen-metrics", "port": 443}
    assert manifest["spec"]["service"] == service
    assert stand.bundle == certificates.authority

    stand.objects["APIService"] = kept = dict(manifest)
    assert await stand.api.check() is False
    assert stand.objects["APIService"] is kept  # nothing was written again
    assert len(stand.listening) == 1


async def test_new_certificates_are_served_once_they_are_trusted_and_the_old_then_forgotten() -> (
    None
):
    stand = Stand()
    await stand.api.check()
    stand.now += LIFETIME * 0.7
    await stand.api.check()
    assert len(stand.listening) == 1  # still the old one's
    assert len(x509.load_pem_x509_certificates(stand.bundle)) == 2
    await stand.api.check()
    old, new = (certificates for certificates, _ in stand.listening)
    assert old.authority != new.authority == stand.bundle


async def test_another_front_proxy_is_taken_in() -> None:
    stand = Stand()
    await stand.api.check()
    data = {**PUBLISHED["data"], "requestheader-allowed-names": '["aggregator"]'}
    stand.objects["ConfigMap"] = {"data": data}
    await stand.api.check()
    assert [proxy.allowed_names[0] for _, proxy in stand.listening] == [
        "front-proxy-client",
        "aggregator",
    ]


async def test_another_adapters_apiservice_is_not_taken_until_it_is_gone() -> None:
    stand = Stand()
    keda = {"spec": {"service": {"namespace": "keda", "name": "keda-metrics"}}, "metadata": {}}
    stand.objects["APIService"] = keda
    await stand.api.check()
    assert stand.reason == "MetricsApiTaken"
    assert stand.api.problem is not None
    for words in ("keda/keda-metrics", "KEDA", "prometheus-adapter"):
        assert words in stand.api.problem.message
    assert stand.objects["APIService"] is keda
    del stand.objects["APIService"]
    assert await stand.api.check() is True
    assert stand.reason is None


async def test_what_keeps_it_from_serving_is_told() -> None:
    stand = Stand()
    del stand.objects["ConfigMap"]
    await stand.api.check()
    assert stand.reason == "NoAggregationLayer"
    stand.objects["ConfigMap"] = PUBLISHED
    stand.error = OSError("address already in use")
    await stand.api.check()
    assert stand.reason == "MetricsApiFailed"
    stand.error = RefusedError(403, "Forbidden", "apiservices is forbidden")
    await stand.api.check()
    assert stand.reason == "MetricsApiRefused"
    stand.error = None
    await stand.api.check()
    assert stand.reason is None
    conditions = [{"type": "Available", "status": "False", "message": "no route to host"}]
    stand.objects["APIService"] = {
        **stand.objects["APIService"],
        "status": {"conditions": conditions},
    }
    await stand.api.check()
    assert stand.reason == "MetricsApiUnreachable"


async def test_a_clock_that_went_back_makes_new_certificates() -> None:
    stand = Stand()
    await stand.api.check()
    stand.now -= timedelta(days=3)
    await stand.api.check()
    await stand.api.check()
    assert len(stand.listening) == 2


def test_the_service_is_called_by_its_cluster_names() -> None:
    assert PLACE.hosts[0] == "qwen-metrics.system.svc"
    assert api.API_SERVICE.path(None, "x") == "/apis/apiregistration.k8s.io/v1/apiservices/x"
