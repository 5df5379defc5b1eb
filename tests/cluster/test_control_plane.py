"""The control-plane-only cluster and its fixtures keep what they promise."""

from pathlib import Path

import pytest

from tests.cluster import launch
from tests.cluster.client import Cluster, CommandError
from tests.cluster.kwok import NodeFactory
from tests.cluster.paths import RunDirectory
from tests.cluster.polling import until
from tests.cluster.processes import ClusterError, marked_pids

_DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
                "containers": [
                    {
                        "name": "web",
                        "image": "localhost/none",
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }
                ],
            },
        },
    },
}


def _is_running(pid: int) -> bool:
    try:  # a zombie is dead, only not yet collected by init
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_objects_are_admitted_and_controllers_act_on_them(
    control_plane: Cluster, namespace: str
) -> None:
    control_plane.apply(_DEPLOYMENT, namespace=namespace)
    until(
        lambda: len(control_plane.get("pods", "-n", namespace)["items"]) == 2,
        what="two pods made by the controllers",
        within_seconds=20,
    )


def test_a_bad_object_is_refused_with_the_api_servers_own_words(
    control_plane: Cluster, namespace: str
) -> None:
    bad = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}}
    with pytest.raises(CommandError, match=r"spec\.ports: Required value"):
        control_plane.apply(bad, namespace=namespace)


def test_restricted_pod_security_is_enforced(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl(
        "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    with pytest.raises(CommandError, match="violates PodSecurity"):
        control_plane.kubectl("run", "-n", namespace, "p", "--image=localhost/none")


def test_pods_become_ready_on_simulated_gpu_nodes(
    control_plane: Cluster, namespace: str, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes(
        "l4-0",
        labels={"nvidia.com/gpu.product": "NVIDIA-L4"},
        allocatable={"nvidia.com/gpu": "2"},
    )
    control_plane.apply(_DEPLOYMENT, namespace=namespace)
    control_plane.kubectl("rollout", "status", "-n", namespace, "deployment/web", "--timeout=30s")
    pods = control_plane.get("pods", "-n", namespace)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"l4-0"}


def test_killing_the_supervisor_ends_every_process_and_a_second_start_works(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    supervisor = launch.start_detached(run, node=False)
    pids = [pid for pid in marked_pids(tmp_path) if _is_running(pid)]
    assert len(pids) == 5  # the supervisor and its four components
    supervisor.kill()
    supervisor.wait()
    until(
        lambda: not any(_is_running(pid) for pid in pids),
        what="end of all components",
        within_seconds=10,
    )
    with launch.running(run, node=False) as again:
        assert again.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_second_supervisor_in_the_same_directory_is_refused(
    control_plane: Cluster,
) -> None:
    assert control_plane.run is not None
    with pytest.raises(ClusterError, match="already running"):
        launch.start_detached(control_plane.run, node=False)
    assert control_plane.kubectl("get", "--raw", "/readyz") == "ok"
