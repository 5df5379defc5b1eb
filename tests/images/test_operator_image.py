"""The operator's image: what is in it, what a change of code costs, and that it runs on a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import Cluster
from tests.cluster.node_images import import_archive
from tests.cluster.paths import REPOSITORY
from tests.cluster.polling import until
from tests.cluster.runtime import OWN_FILES
from tests.images.facts import (
    code_megabytes,
    copy_of_the_sources,
    megabytes_above_base,
    num_new_layers,
    python_in,
)
from tests.images.podman import Podman

pytestmark = pytest.mark.root

CHART = REPOSITORY / "charts" / "qwen-operator"
CRD = "qwendeployments.qwenoperator.io"
ON_NODE = "localhost/qwen-operator:on-node"


@pytest.fixture
def config(podman: Podman, operator_image: str) -> dict[str, Any]:
    """The image's configuration."""
    found: dict[str, Any] = podman.inspect(operator_image)["Config"]
    return found


def test_it_adds_less_than_200_mb_to_its_base(podman: Podman, operator_image: str) -> None:
    assert megabytes_above_base(podman, operator_image) < 200


def test_it_runs_as_nobody_in_particular_and_says_what_it_is(config: dict[str, Any]) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    labels = {k.rpartition(".")[2]: v for k, v in config["Labels"].items() if "opencontainers" in k}
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/code/bin/qwen-operator"]  # no shell
    assert (labels["title"], labels["version"]) == ("qwen-operator", version)
    assert labels["licenses"] == "Apache-2.0"


def test_its_bill_of_materials_lists_pinned_packages_and_no_torch(
    podman: Podman, operator_image: str
) -> None:
    text = python_in(podman, operator_image, "print(open('/opt/code/sbom.cdx.json').read())")
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {c["name"].lower().replace("_", "-"): c["version"] for c in bill["components"]}
    assert {"qwen-operator", "qwen-engine", "kopf", "aiohttp"} <= set(listed)
    assert "torch" not in listed
    pins = (REPOSITORY / "constraints.txt").read_text("utf-8")
    others = {name: v for name, v in listed.items() if not name.startswith("qwen-")}
    assert [name for name, v in others.items() if f"{name}=={v}" not in pins] == []
    assert all(c["purl"].startswith("pkg:pypi/") for c in bill["components"])


def test_a_change_of_code_sends_less_than_5_mb(
    podman: Podman, operator_image: str, tmp_path: Path
) -> None:
    changed = copy_of_the_sources(tmp_path / "changed")
    with (changed / "operator" / "qwen_operator" / "names.py").open("a") as file:
        file.write(f"\n# {tmp_path}\n")
    tag = "localhost/qwen-operator:changed"
    podman.build("operator", tag, context=changed)
    try:
        assert num_new_layers(podman, operator_image, tag) == 2  # our code, and its bill
        assert code_megabytes(podman, tag) < 5
    finally:
        podman.run("rmi", tag)


@pytest.fixture
def installed(
    cluster: Cluster, namespace: str, podman: Podman, operator_image: str, tmp_path: Path
) -> Iterator[str]:
    """The chart with the built image, whose pod sees no file of this machine."""
    archive = tmp_path / "operator.tar"
    podman.run("tag", operator_image, ON_NODE)
    podman.run("save", "--format=docker-archive", "--output", str(archive), ON_NODE)
    assert cluster.run is not None
    import_archive(cluster.run, archive)
    archive.unlink()
    meta = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    cluster.apply({**meta, "metadata": {"name": OWN_FILES}, "handler": OWN_FILES})
    repository, _, tag = ON_NODE.partition(":")
    image = f"image.repository={repository},image.tag={tag},image.pullPolicy=Never"
    values = ("--set", image, "--set", f"runtimeClassName={OWN_FILES}")
    cluster.helm("install", "op", str(CHART), "-n", namespace, *values, "--wait=false")
    yield namespace
    cluster.helm("uninstall", "op", "-n", namespace, "--wait")
    cluster.kubectl("delete", "crd", CRD)
    cluster.kubectl("delete", "runtimeclass", OWN_FILES)


def test_on_a_node_it_plans_a_model(cluster: Cluster, installed: str) -> None:
    deployment = ("deployment/op-qwen-operator", "-n", installed)
    cluster.kubectl("rollout", "status", *deployment, "--timeout=120s", seconds=130)
    manifest = {
        "apiVersion": "qwenoperator.io/v1alpha1",
        "kind": "QwenDeployment",
        "metadata": {"name": "chat"},
        "spec": {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}, "replicas": 0},
    }
    cluster.apply(manifest, namespace=installed)

    def plan() -> dict[str, Any]:
        found = cluster.get("qwen", "chat", "-n", installed).get("status", {})
        return dict(found.get("plan", {}))

    assert until(plan, what="a plan", within_seconds=60)["blocks"]["total"] > 0
    cluster.kubectl("delete", "qwen", "chat", "-n", installed)
