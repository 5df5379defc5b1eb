"""The whole node runs real pods, is reachable from here, and leaves nothing behind."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cluster import launch
from tests.cluster.cgroups import cgroup_folders
from tests.cluster.client import Cluster, CommandError
from tests.cluster.images import ENGINE_IMAGE
from tests.cluster.paths import RunDirectory
from tests.cluster.polling import until
from tests.cluster.processes import marked_pids
from tests.cluster.state import read_state
from tests.cluster.subnets import Slot, taken_slots

pytestmark = pytest.mark.root

_SERVER = """
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        import qwen_engine
        self.send_response(200); self.end_headers(); self.wfile.write(qwen_engine.__file__.encode())
http.server.ThreadingHTTPServer(("", 8000), Hello).serve_forever()
"""


def _restricted_pod(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "web",
                    "image": ENGINE_IMAGE,
                    "command": ["python", "-c", _SERVER],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "readinessProbe": {
                        "httpGet": {"path": "/", "port": 8000},
                        "periodSeconds": 1,
                    },
                }
            ],
        },
    }


def _run_pod(cluster: Cluster, namespace: str) -> None:
    account = ("serviceaccount", "default", "-n", namespace)
    until(lambda: cluster.exists(*account), what="service account", within_seconds=20)
    cluster.apply(_restricted_pod("web"), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "pod/web", "--for=condition=Ready", "--timeout=60s")


def _traces() -> dict[str, set[str]]:
    """Return what a node adds to this machine, by kind; of clusters that run, nothing."""
    running = [name for slot in taken_slots() for name in (slot.interface, slot.cgroup)]
    rules = ""
    if save := shutil.which("iptables-save"):
        rules = subprocess.run([save], capture_output=True, text=True, check=False).stdout
    sysctls = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
    return {
        "links": {p.name for p in Path("/sys/class/net").glob("qwen*") if p.name not in running},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "cgroups": {str(p) for p in cgroup_folders("qwen-cluster-*") if p.name not in running},
        "rules": {line for line in rules.splitlines() if line.startswith("-A")},
        "sysctls": {f"{name}={Path('/proc/sys', name).read_text()}" for name in sysctls},
        "folders": {str(p) for p in (*Path("/var/lib").iterdir(), *Path("/opt").iterdir())},
    }


def _await_nothing_left(run: RunDirectory, before: dict[str, set[str]]) -> None:
    until(
        lambda: (
            not list(marked_pids(run.path))
            and all(now <= before[kind] for kind, now in _traces().items())
        ),
        what=f"nothing left of {run.path}",
        within_seconds=30,
    )


def test_a_restricted_pod_runs_this_clone_and_answers_through_its_service(
    cluster: Cluster, namespace: str
) -> None:
    cluster.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    _run_pod(cluster, namespace)
    cluster.kubectl("expose", "-n", namespace, "pod/web", "--port=80", "--target-port=8000")
    address = cluster.get("service", "web", "-n", namespace)["spec"]["clusterIP"]

    def answer() -> bytes:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}") as response:
            return bytes(response.read())
        return b""

    body = until(answer, what="the Service's answer", within_seconds=20)
    assert body == b"/opt/qwen/repository/engine/qwen_engine/__init__.py"
    ask = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
    resolve = ("exec", "-n", namespace, "web", "--", "python", "-c", ask)
    assert cluster.kubectl(*resolve, f"web.{namespace}.svc").strip() == address
    with pytest.raises(CommandError, match="Name or service not known"):
        cluster.kubectl(*resolve, "example.com")


def test_a_container_beyond_its_memory_limit_is_killed_and_says_so(
    cluster: Cluster, namespace: str
) -> None:
    pod = json.loads(json.dumps(_restricted_pod("greedy")))
    pod["spec"]["restartPolicy"] = "Never"
    container = pod["spec"]["containers"][0]
    container["command"] = ["python", "-c", "x = b'x' * (1 << 30)"]
    container["resources"] = {"limits": {"memory": "64Mi"}}
    account = ("serviceaccount", "default", "-n", namespace)
    until(lambda: cluster.exists(*account), what="service account", within_seconds=20)
    cluster.apply(pod, namespace=namespace)

    def reason() -> str | None:
        status = cluster.get("pod", "greedy", "-n", namespace)["status"]
        states = [c["state"] for c in status.get("containerStatuses", [])]
        return next((s["terminated"]["reason"] for s in states if "terminated" in s), None)

    assert until(reason, what="the container's end", within_seconds=30) == "OOMKilled"


def test_killed_at_any_moment_of_its_start_a_cluster_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = _traces()
    for _ in range(4):
        moment = random.uniform(0.0, 6.0)
        print(f"killing the supervisor {moment:.3f} s after its start")  # shown on failure
        supervisor = launch.spawn_supervisor(run, node=True, lifeline=False)
        time.sleep(moment)  # the moment itself; nothing is waited for
        supervisor.kill()
        supervisor.wait()
        _await_nothing_left(run, before)


def _kill_all(run: RunDirectory) -> None:
    """SIGKILL supervisor, watcher and all, so that nobody is left to clean up."""
    for pid in list(marked_pids(run.path)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_cluster_killed_with_its_watcher_is_cleaned_up_by_the_next_start_or_stop(
    tmp_path: Path,
) -> None:
    run, before = RunDirectory(tmp_path), _traces()
    for clean_up in ("start", "stop"):
        supervisor = launch.start_detached(run, node=True)
        _run_pod(Cluster(run.kubeconfig, run), "default")
        state = read_state(run)
        assert state is not None
        assert cgroup_folders(Slot(state.slot).cgroup)
        _kill_all(run)
        supervisor.wait()
        if clean_up == "start":
            with launch.running(run, node=True) as again:
                _run_pod(again, "default")
        else:
            assert not launch.stop(run)
        _await_nothing_left(run, before)
