"""The first process of a node, in mount, network, PID and IPC namespaces of its own.

Started by the supervisor through `unshare`. All of the node descends from it, so when it ends the
kernel ends the rest: processes, mounts, interfaces and packet filter rules.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import tools
from tests.cluster.bring_up import Components, await_fact, say, start_control_plane
from tests.cluster.client import Cluster, CommandError
from tests.cluster.control_plane import ControlPlaneSettings
from tests.cluster.images import (
    ENGINE_IMAGE,
    OPERATOR_IMAGE,
    pause_image,
    python_image,
    write_archive,
)
from tests.cluster.node_commands import NODE_NAME, dns_command, kubelet_command, proxy_command
from tests.cluster.paths import REPOSITORY, RunDirectory, cache_dir
from tests.cluster.processes import ClusterError
from tests.cluster.runtime import SOCKET, write_cni_config, write_containerd_config
from tests.cluster.subnets import Slot

_OWN_FOLDERS = ("/var/log", "/var/lib")  # where CNI and kubelet write, whatever one tells them
_KUBELET_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
_UPLINK = "uplink"


def main() -> int:
    """Bring the node up, then collect orphans until a component ends or we are killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--host-network", type=int, required=True, help="descriptor of its netns")
    args = parser.parse_args()
    run, slot = RunDirectory(args.dir), Slot(args.slot)
    components = Components(run)
    try:
        _separate_mounts(run)
        _separate_network(slot, args.host_network)
        _start(run, slot, components)
        _collect_orphans(components)
    except subprocess.CalledProcessError as error:
        say(f"error: {error}\n{error.stderr or ''}")
    except (ClusterError, CommandError, TimeoutError) as error:
        say(f"error: {error}")
    return 1


def _separate_mounts(run: RunDirectory) -> None:
    needed = [run.path, cache_dir(), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
    _command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for folder in _OWN_FOLDERS:
        _hide(Path(folder), [path for path in needed if path.is_relative_to(folder)])
    # kubelet sets these for the whole machine; here it finds what it wants, and sets nothing
    for name, value in _KUBELET_SYSCTLS.items():
        stand_in = Path("/run/sysctl", name)
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        _command("mount", "--bind", str(stand_in), f"/proc/sys/{name}")


def _hide(folder: Path, needed: Sequence[Path]) -> None:
    """Mount an empty folder over `folder`, except for the paths inside it that we need."""
    for number, path in enumerate(needed):
        aside = Path(f"/run/aside/{folder.name}/{number}")
        aside.mkdir(parents=True)
        _command("mount", "--bind", str(path), str(aside))
    _command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
    for number, path in enumerate(needed):
        path.mkdir(parents=True, exist_ok=True)
        _command("mount", "--bind", f"/run/aside/{folder.name}/{number}", str(path))


def _separate_network(slot: Slot, host_network: int) -> None:
    """Make the link to the host, and refuse at once what would leave the cluster."""
    length = slot.link_cidr.partition("/")[2]
    _command("ip", "link", "set", "lo", "up")
    _command(
        *("ip", "link", "add", _UPLINK, "type", "veth", "peer", "name", slot.interface),
        *("netns", f"/proc/self/fd/{host_network}"),
        keep=host_network,
    )
    _command("ip", "address", "add", f"{slot.node_address}/{length}", "dev", _UPLINK)
    _command("ip", "link", "set", _UPLINK, "up")
    _command("ip", "route", "add", "default", "via", slot.host_address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    reject = ("-j", "REJECT")
    _command("iptables", "-A", "FORWARD", "-d", slot.service_cidr, *reject)
    _command("iptables", "-A", "FORWARD", "-o", _UPLINK, "!", "-d", slot.link_cidr, *reject)
    os.close(host_network)


def _start(run: RunDirectory, slot: Slot, components: Components) -> None:
    kubernetes = tools.ensure("kubernetes")
    write_cni_config(run, slot)
    components.start("containerd", ["containerd", "-c", str(write_containerd_config(run))])
    settings = _control_plane_settings(run, slot)
    start_control_plane(settings, components)
    components.start("dns", dns_command(run, slot, server=settings.server))
    _import_images(run, components)
    components.start("kubelet", kubelet_command(kubernetes, run, slot))
    components.start("kube-proxy", proxy_command(kubernetes, run, slot))
    cluster = Cluster(run.kubeconfig, run)
    await_fact(components, "the node Ready", lambda: _is_ready(cluster))
    say("node ready")
    run.node_ready.touch()


def _control_plane_settings(run: RunDirectory, slot: Slot) -> ControlPlaneSettings:
    return ControlPlaneSettings(
        run=run,
        etcd_bin=tools.ensure("etcd"),
        kubernetes_bin=tools.ensure("kubernetes"),
        address=slot.node_address,
        port=6443,
        etcd_port=2379,
        etcd_peer_port=2380,
        service_cidr=slot.service_cidr,
        has_node=True,
    )


def _import_images(run: RunDirectory, components: Components) -> None:
    archive = run.path / "images.tar"
    images = [
        pause_image(tools.ensure("pause") / "pause"),
        python_image(ENGINE_IMAGE, command="qwen-engine", module="qwen_engine.__main__"),
        python_image(OPERATOR_IMAGE, command="qwen-operator", module="qwen_operator.__main__"),
    ]
    write_archive(archive, images)
    await_fact(components, "containerd's socket", SOCKET.exists)
    _command("ctr", "-a", str(SOCKET), "-n", "k8s.io", "images", "import", str(archive))


def _is_ready(cluster: Cluster) -> bool:
    if not cluster.exists("node", NODE_NAME):
        return False
    conditions = cluster.get("node", NODE_NAME)["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _collect_orphans(components: Components) -> None:
    """Be init: reap whatever loses its parent. Raises ClusterError when a component ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        components.check()
        components.reap_others()
        signal.sigtimedwait([signal.SIGCHLD], 5.0)


def _command(*argv: str, keep: int | None = None) -> None:
    subprocess.run(
        argv,
        check=True,
        capture_output=True,
        text=True,
        pass_fds=() if keep is None else (keep,),
    )


if __name__ == "__main__":
    sys.exit(main())
