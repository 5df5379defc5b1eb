"""KEDA 2.21 on a node of ours: its own programs, CRDs and rights, in pods of the pause image."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.cluster import tools
from tests.cluster.client import Cluster
from tests.cluster.front_proxy import sign_server
from tests.cluster.images import PAUSE_IMAGE
from tests.cluster.polling import until

NAMESPACE, ACCOUNT, SECRET = "keda", "keda-operator", "kedaorg-certs"
OPERATOR, ADAPTER = "keda-operator", "keda-metrics-apiserver"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
_FLAGS = {
    OPERATOR: ["--enable-cert-rotation=false", "--zap-log-level=info", "--zap-encoder=console"],
    ADAPTER: [
        "--secure-port=6443", "--client-ca-file=/certs/ca.crt", "--tls-cert-file=/certs/tls.crt",
        "--tls-private-key-file=/certs/tls.key", "--cert-dir=/certs", "--zap-log-level=error",
    ],
}  # fmt: skip
_PROGRAMS = {OPERATOR: "keda-operator", ADAPTER: "keda-adapter"}
_PORTS = {OPERATOR: (9666, 9666), ADAPTER: (443, 6443)}


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    """Hold KEDA up inside a `with`; nothing of it is left afterwards but its CRDs."""
    programs = tools.ensure("keda")
    manifests = programs / "manifests"
    cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crd" / "bases"))
    cluster.kubectl("create", "namespace", NAMESPACE)
    authority, secret = _certificates()
    try:
        cluster.kubectl("apply", "-f", str(manifests / "rbac" / "role.yaml"))
        cluster.apply(*_rights(), secret, *_services(), namespace=NAMESPACE)
        cluster.apply(_role_binding(), _api_service(authority))
        cluster.apply(*(_deployment(name, programs) for name in _PROGRAMS), namespace=NAMESPACE)
        for name in _PROGRAMS:
            cluster.kubectl("rollout", "status", "-n", NAMESPACE, f"deployment/{name}",
                            "--timeout=90s", seconds=100)  # fmt: skip
        until(lambda: _is_served(cluster), what="KEDA's metrics API", within_seconds=90)
        yield
    finally:
        cluster.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def logs(cluster: Cluster) -> str:
    """Return what KEDA's two programs said last."""
    said = (
        cluster.kubectl("logs", "-n", NAMESPACE, f"deployment/{name}", "--tail=60")
        for name in _PROGRAMS
    )
    return "\n".join(said)


def _is_served(cluster: Cluster) -> bool:
    found = cluster.get("apiservice", API_SERVICE).get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in found)


def _certificates() -> tuple[bytes, dict[str, Any]]:
    """Return the authority (PEM), and the Secret with one certificate for both programs."""
    names = [f"{n}.{NAMESPACE}{end}" for n in _PROGRAMS for end in (".svc", ".svc.cluster.local")]
    key = ec.generate_private_key(ec.SECP256R1())
    authority, certificate = sign_server(key.public_key(), names, datetime.now(UTC))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = {"ca.crt": authority, "tls.crt": certificate, "tls.key": pem}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return authority, {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data,
    }  # fmt: skip


def _rights() -> list[dict[str, Any]]:
    """What KEDA's chart binds besides its own role: certificates, leases, delegated checks."""
    role = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    bindings = [
        {
            "apiVersion": f"{role}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"keda-{name.rpartition(':')[2]}"},
            "roleRef": {"apiGroup": role, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        }
        for name in (ACCOUNT, "system:auth-delegator")
    ]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    return [account, *bindings]


def _role_binding() -> dict[str, Any]:
    role = "rbac.authorization.k8s.io"
    reader = "extension-apiserver-authentication-reader"
    return {
        "apiVersion": f"{role}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "keda-auth-reader", "namespace": "kube-system"},
        "roleRef": {"apiGroup": role, "kind": "Role", "name": reader},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }


def _services() -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "selector": {"app": name},
                "ports": [{"port": port, "targetPort": target, "name": "tls"}],
            },
        }
        for name, (port, target) in _PORTS.items()
    ]


def _api_service(authority: bytes) -> dict[str, Any]:
    group, version = "external.metrics.k8s.io", "v1beta1"
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API_SERVICE},
        "spec": {
            "group": group, "version": version, "groupPriorityMinimum": 100,
            "versionPriority": 100, "caBundle": base64.b64encode(authority).decode(),
            "service": {"namespace": NAMESPACE, "name": ADAPTER, "port": 443},
        },
    }  # fmt: skip


def _deployment(name: str, programs: Path) -> dict[str, Any]:
    env = {"WATCH_NAMESPACE": "", "POD_NAMESPACE": NAMESPACE,
           "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE}  # fmt: skip
    container = {
        "name": "keda",
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "command": [f"/keda/{_PROGRAMS[name]}"],
        "args": _FLAGS[name],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "readinessProbe": {"tcpSocket": {"port": _PORTS[name][1]}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "keda", "mountPath": "/keda", "readOnly": True},
            {"name": "certs", "mountPath": "/certs", "readOnly": True},
        ],
    }
    volumes = [
        {"name": "keda", "hostPath": {"path": str(programs), "type": "Directory"}},
        {"name": "certs", "secret": {"secretName": SECRET}},
    ]
    pod = {
        "serviceAccountName": ACCOUNT,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsUser": 65532, "runAsNonRoot": True},
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }
