"""containerd's configuration, and what it mounts into every container.

Called by the node's first process. Manifests stay exactly what users get: the mounts come from
containerd's base runtime spec, so not even restricted pod security sees them.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.cluster.images import CONTAINER_REPOSITORY, CONTAINER_VENV, PAUSE_IMAGE
from tests.cluster.paths import REPOSITORY, RunDirectory
from tests.cluster.processes import ClusterError
from tests.cluster.subnets import Slot

OWN_FILES = "own-files"
SOCKET = Path("/run/containerd/containerd.sock")
_CNI_PROGRAMS = ("/usr/lib/cni", "/opt/cni/bin")


def mounts() -> dict[str, str]:
    """Return container path → host path of what every container sees, read-only."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    result = {
        "/usr": "/usr",
        str(CONTAINER_REPOSITORY): str(REPOSITORY),
        f"{CONTAINER_VENV}/lib/{version}/site-packages": sysconfig.get_path("purelib"),
    }
    base = os.path.realpath(sys.base_prefix)
    if not base.startswith("/usr"):
        result[base] = base
    return result


def write_base_spec(target: Path) -> None:
    """Write the OCI runtime spec that containerd starts every container's spec from."""
    spec: dict[str, Any] = json.loads(subprocess.check_output(["ctr", "oci", "spec"]))
    # ctr's default of 1,024 open files is for one command at a terminal, not for a server
    spec["process"].pop("rlimits", None)
    spec["mounts"] += [
        {"destination": inside, "type": "bind", "source": outside, "options": ["rbind", "ro"]}
        for inside, outside in mounts().items()
    ]
    target.write_text(json.dumps(spec))


def write_containerd_config(run: RunDirectory) -> Path:
    """Write containerd's configuration and all that it points to; return its path."""
    write_base_spec(run.path / "base-spec.json")
    config = run.path / "containerd.toml"
    config.write_text(f"""\
version = 2
root = "{run.path}/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{run.path}/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # the kernel lets nobody below the node's own score, which may not be ours to lower
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_cni_programs()}"
    conf_dir = "{run.path}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # copies instead of layers: our images are small, and this works on any filesystem
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{run.path}/base-spec.json"
    # for images that bring their own files (a RuntimeClass with this handler)
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{OWN_FILES}]
      runtime_type = "io.containerd.runc.v2"
""")
    return config


def _cni_programs() -> str:
    for folder in _CNI_PROGRAMS:
        if Path(folder, "bridge").exists():
            return folder
    raise ClusterError("the CNI plugins are missing: apt-get install containernetworking-plugins")


def write_cni_config(run: RunDirectory, slot: Slot) -> None:
    """Write the pods' network: one bridge, addresses handed out from the slot's subnet."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni-addresses",
            "ranges": [[{"subnet": slot.pod_cidr}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    config = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}
    folder = run.path / "cni"
    folder.mkdir(exist_ok=True)
    (folder / "10-pods.conflist").write_text(json.dumps(config))
