"""kubelet and kube-proxy: their configuration and command lines.

Called by the node's first process. Knows nothing of namespaces: see node.py for those.
"""

import json
import sys
from pathlib import Path

from tests.cluster.paths import RunDirectory
from tests.cluster.runtime import SOCKET
from tests.cluster.subnets import Slot

NODE_NAME = "local"


def write_kubelet_config(run: RunDirectory, slot: Slot) -> Path:
    """Write kubelet's configuration; return its path."""
    # for pods that ask for the node's own resolver: the same one, since no other can be reached
    (run.path / "resolv.conf").write_text(f"nameserver {slot.node_address}\n")
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "address": slot.node_address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "healthzPort": 0,
        # one subtree per cluster: two may run at once, and the watcher knows what to remove
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{slot.cgroup}",
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "clusterDomain": "cluster.local",
        "clusterDNS": [slot.node_address],
        "resolvConf": f"{run.path}/resolv.conf",
        # a full disk of the developer's must not evict pods or delete our images
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        # what the defaults would write elsewhere on the host
        "podLogsDir": f"{run.path}/pod-logs",
        "volumePluginDir": f"{run.path}/volume-plugins",
    }
    target = run.path / "kubelet.json"
    target.write_text(json.dumps(config, indent=1))
    return target


def dns_command(run: RunDirectory, slot: Slot, *, server: str) -> list[str]:
    """Return the command of the DNS server that pods are told to ask."""
    argv = [sys.executable, "-m", "tests.cluster.dns", "--dir", str(run.path)]
    return [*argv, "--address", slot.node_address, "--server", server]


def kubelet_command(kubernetes_bin: Path, run: RunDirectory, slot: Slot) -> list[str]:
    """Return kubelet's command."""
    return [
        str(kubernetes_bin / "kubelet"),
        f"--kubeconfig={run.kubeconfig}",
        f"--config={write_kubelet_config(run, slot)}",
        f"--root-dir={run.path}/kubelet",
        f"--cert-dir={run.path}/kubelet-certs",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={slot.node_address}",
    ]


def proxy_command(kubernetes_bin: Path, run: RunDirectory, slot: Slot) -> list[str]:
    """Return kube-proxy's command."""
    return [
        str(kubernetes_bin / "kube-proxy"),
        f"--kubeconfig={run.kubeconfig}",
        f"--hostname-override={NODE_NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={slot.pod_cidr}",
        f"--bind-address={slot.node_address}",
        "--metrics-bind-address=127.0.0.1:10249",
        "--healthz-bind-address=127.0.0.1:10256",
        # these are the host's settings, not a namespace's: leave them alone
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]
