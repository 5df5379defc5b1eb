"""The packed chart on a real node: from nothing, from the first version, and away again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.first_version import IMAGE, operator_image, unpack_first_version
from tests.cluster.client import Cluster, CommandError
from tests.cluster.images import write_archive
from tests.cluster.node_images import import_archive
from tests.cluster.paths import REPOSITORY
from tests.cluster.polling import until
from tests.cluster.volumes import offer_folder
from tests.e2e.served import Served
from tests.models.tiny import build_tiny

pytestmark = pytest.mark.root

CHART = REPOSITORY / "charts" / "qwen-operator"
CRD_NAME = "qwendeployments.qwenoperator.io"
_LOCAL = ("-f", str(CHART / "ci" / "local-images-values.yaml"))
_PASSING = ("event", "lease", "endpointslice", "endpoints", "ipaddress")


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without a CRD of ours, and so again afterwards."""
    assert not cluster.exists("crd", CRD_NAME), "another test has left its CRD"
    yield cluster
    cluster.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")


def test_an_upgrade_from_the_first_version_brings_the_crd_and_restarts_no_engine(
    empty: Cluster, namespace: str, tmp_path: Path
) -> None:
    before = _objects(empty)
    _install_first_version(empty, namespace, tmp_path)
    model = build_tiny("qwen3-tied")
    offer_folder(empty, model.parent, claim="models", namespace=namespace)
    served = Served(empty, namespace, "chat")
    served.apply_tiny(model)
    served.await_available()
    [pod] = served.pods()
    with pytest.raises(CommandError, match="autoscaling"):
        served.apply_tiny(model, autoscaling={"maxReplicas": 2})

    empty.helm("package", str(CHART), "--destination", str(tmp_path))
    packed = str(tmp_path / f"qwen-operator-{_version()}.tgz")
    empty.helm("upgrade", "op", packed, "-n", namespace, *_LOCAL, "--wait", "--timeout", "90s")
    until(lambda: _is_as_shipped(empty.get("crd", CRD_NAME)), what="the new CRD", within_seconds=30)
    until(lambda: "Planned" in _newest_status(served), what="its status", within_seconds=60)
    served.apply_tiny(model, autoscaling={"maxReplicas": 2})  # the first version did not know it
    until(lambda: empty.exists("hpa", "chat", "-n", namespace), what="its HPA", within_seconds=30)
    contract = served.await_condition("MetricsContract", "True")
    assert "qwen_replicas_needed" in contract["message"]
    assert "Phase:          Succeeded" in empty.helm("test", "op", "-n", namespace)
    [same] = served.pods()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    assert served.condition("Available")["status"] == "True"

    served.kubectl("delete", "qwen", "chat")
    served.await_gone()
    empty.helm("uninstall", "op", "-n", namespace, "--wait")
    empty.kubectl("delete", "pvc,pv", "--all", "-n", namespace)
    crd = {f"customresourcedefinition/{CRD_NAME}", "apiservice/v1alpha1.qwenoperator.io"}
    with contextlib.suppress(TimeoutError):
        until(lambda: _objects(empty) - before == crd, what="only the CRD", within_seconds=30)
    assert _objects(empty) - before == crd


def _install_first_version(cluster: Cluster, namespace: str, folder: Path) -> None:
    first = unpack_first_version(folder / "first")
    write_archive(folder / "first.tar", [operator_image(first)])
    assert cluster.run is not None
    import_archive(cluster.run, folder / "first.tar")
    chart = first / "charts" / "qwen-operator"
    cluster.helm("package", str(chart), "--destination", str(folder / "first"))
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    repository, _, tag = IMAGE.partition(":")
    image = f"image.repository={repository},image.tag={tag},image.pullPolicy=Never"
    packed = str(folder / "first" / f"qwen-operator-{version}.tgz")
    cluster.helm(
        *("install", "op", packed, "-n", namespace, "--wait", "--timeout", "90s"),
        *("--set", image, "--set", "engineImage.repository=localhost/qwen-engine"),
        *("--set", "engineImage.tag=dev"),
    )


def _version() -> str:
    version: str = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["version"]
    return version


def _is_as_shipped(live: dict[str, object]) -> bool:
    text = (REPOSITORY / "crds" / "qwendeployments.yaml").read_text("utf-8")
    return _contains(live, {"spec": yaml.safe_load(text)["spec"]})


def _contains(live: object, wanted: object) -> bool:
    """The API server adds defaults, and nothing of an older version may be left in lists."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_contains(live.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        is_alike = isinstance(live, list) and len(live) == len(wanted)
        return is_alike and all(_contains(a, b) for a, b in zip(live, wanted, strict=True))
    return live == wanted


def _newest_status(served: Served) -> str:
    return json.dumps(served.status())


def _objects(cluster: Cluster) -> set[str]:
    """Return KIND/NAME of all objects in the cluster that do not come and go by themselves."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    listed = cluster.kubectl(
        "get", ",".join(kinds), "--all-namespaces", "-o", "name", "--ignore-not-found"
    ).split()
    named = {_plain(name) for name in listed}
    return {name for name in named if not name.startswith(_PASSING)}


def _plain(name: str) -> str:
    """`deployment.apps/x` → `deployment/x`."""
    kind, _, rest = name.partition("/")
    return f"{kind.partition('.')[0]}/{rest}"
