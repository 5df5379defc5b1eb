"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler: their command lines.

Pure: settings in, arguments out. The supervisor runs them on the loopback, the node's first
process inside its namespaces.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.credentials import FRONT_PROXY
from tests.cluster.paths import RunDirectory
from tests.cluster.subnets import SERVICES_WITHOUT_NODE


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """Addresses and programs of one control plane."""

    run: RunDirectory
    etcd_bin: Path
    kubernetes_bin: Path
    address: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    service_cidr: str = SERVICES_WITHOUT_NODE
    has_node: bool = False

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.port}"


def etcd_command(settings: ControlPlaneSettings) -> list[str]:
    """Return the command of a one-member etcd."""
    client = f"http://127.0.0.1:{settings.etcd_port}"
    peer = f"http://127.0.0.1:{settings.etcd_peer_port}"
    return [
        str(settings.etcd_bin / "etcd"),
        f"--data-dir={settings.run.path}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nobody mourns a test cluster that a power cut took
        "--log-level=warn",
    ]


def apiserver_command(settings: ControlPlaneSettings) -> list[str]:
    """Return the API server's command; it writes its own certificate under `certs/`."""
    run = settings.run
    # the Service `kubernetes` can't point at a loopback address; without pods nobody misses it
    reconciler = "lease" if settings.has_node else "none"
    return [
        str(settings.kubernetes_bin / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{settings.etcd_port}",
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={settings.port}",
        f"--endpoint-reconciler-type={reconciler}",
        f"--cert-dir={run.certificates}",
        f"--token-auth-file={run.path}/tokens.csv",
        "--authorization-mode=RBAC",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={run.path}/sa.key",
        f"--service-account-signing-key-file={run.path}/sa.key",
        *_aggregation_flags(run.path / "front-proxy"),
        f"--audit-policy-file={run.audit_policy}",
        f"--audit-log-path={run.audit_log}",
        # some clusters run it (OpenShift): who sets a blocking owner reference needs a right more
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def _aggregation_flags(folder: Path) -> list[str]:
    """Return what lets the API server ask other servers as `front-proxy-client`.

    https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
    """
    return [
        f"--requestheader-client-ca-file={folder}/ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/client.pem",
        f"--proxy-client-key-file={folder}/client.pem",
    ]


def controller_manager_command(settings: ControlPlaneSettings) -> list[str]:
    """Return the controller manager's command; it serves no port of its own."""
    return [
        str(settings.kubernetes_bin / "kube-controller-manager"),
        f"--kubeconfig={settings.run.kubeconfig}",
        f"--service-account-private-key-file={settings.run.path}/sa.key",
        f"--root-ca-file={settings.run.certificates}/apiserver.crt",
        "--horizontal-pod-autoscaler-sync-period=1s",  # 15 s would be most of a test
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]


def scheduler_command(settings: ControlPlaneSettings) -> list[str]:
    """Return the scheduler's command; it serves no port of its own."""
    return [
        str(settings.kubernetes_bin / "kube-scheduler"),
        f"--kubeconfig={settings.run.kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]
