"""The chart: lint, rendering, its closed schema, and its copy of the CRD."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from qwen_operator.pod_defaults import PodDefaults, parse_pod_defaults
from qwen_operator.runtime import DEFAULT_VLLM_IMAGE
from qwen_operator.settings import parse_settings
from tests.cluster import tools
from tests.setup import chart_values

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "qwen-operator"
VARIANTS = sorted((CHART / "ci").glob("*-values.yaml"))


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tools.ensure("helm") / "helm"), *args], capture_output=True, text=True, check=False
    )


def render(*args: str) -> list[dict[str, Any]]:
    result = helm("template", "op", str(CHART), "--namespace", "place", "--include-crds", *args)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def one(documents: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    [found] = [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(suffix)]
    return found


def test_the_crd_in_the_chart_is_the_crd() -> None:
    copied = (CHART / "crds" / "qwendeployments.yaml").read_bytes()
    assert copied == (ROOT / "crds" / "qwendeployments.yaml").read_bytes(), "run `make crds`"


@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem)
def test_every_variant_lints_and_renders(values: Path) -> None:
    result = helm("lint", "--strict", str(CHART), "-f", str(values))
    assert result.returncode == 0, result.stdout
    kinds = [document["kind"] for document in render("-f", str(values))]
    assert kinds.count("CustomResourceDefinition") == 1
    assert kinds.count("Deployment") == (2 if "to-zero" in values.stem else 1)


@pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.stem)
def test_the_operator_is_locked_down_in_every_variant(values: Path) -> None:
    for deployment in (d for d in render("-f", str(values)) if d["kind"] == "Deployment"):
        check_locked_down(deployment)


def check_locked_down(deployment: dict[str, Any]) -> None:
    # two operators would do the same work twice; a younger activator takes over from the older
    strategy = "RollingUpdate" if "activator" in deployment["metadata"]["name"] else "Recreate"
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == strategy
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert all("hostPath" not in volume for volume in pod["volumes"])


def test_the_values_are_all_described_by_the_schema_and_no_others() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, value in values.items():
        described = schema["properties"][name]
        described = schema["$defs"].get(described.get("$ref", "").rpartition("/")[2], described)
        if "properties" in described:
            assert set(described["properties"]) == set(value), name


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("operatorImage=x", "operatorImage"),
        ("image.pullpolicy=Always", "pullpolicy"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("logLevel=loud", "logLevel"),
        ("scrapeSeconds=0", "scrapeSeconds"),
        ("scrapeSeconds=often", "scrapeSeconds"),
        ("metricsApi.port=443", "port"),
        ("figures.port=80", "port"),
        ("activator.replicas=2", "activator"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
        ("watchNamespaces=team-a", "watchNamespaces"),
        ("engineImage.repository=", "engineImage"),
        ("resources.limits.memory=lots", "resources"),
        ("rbac.create=perhaps", "rbac"),
        ("image.digest=sha256:abc", "digest"),
        ("imageRegistry=https://mirror", "imageRegistry"),
        ("proxy.httpProxy=proxy:3128", "httpProxy"),
        ("engineDefaults.env.A=1", "env"),
        ("engineDefaults.imagePullSecrets={registry}", "imagePullSecrets"),
        ("crds.install=sometimes", "crds"),
        ("networkPolicy.engineFrom[0].pods=all", "engineFrom"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(setting: str, words: str) -> None:
    result = helm("template", "op", str(CHART), "--set", setting)
    assert result.returncode != 0
    assert words in result.stderr


def test_the_images_are_the_charts_version_unless_told_otherwise() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    container = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"qwen-operator:{version}"
    assert {"name": "QWEN_ENGINE_IMAGE", "value": f"qwen-engine:{version}"} in container["env"]
    # and vLLM's is of the release that the planner prices
    assert {"name": "QWEN_VLLM_IMAGE", "value": DEFAULT_VLLM_IMAGE} in container["env"]

    local = render("-f", str(CHART / "ci" / "local-images-values.yaml"))
    container = one(local, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "localhost/qwen-operator:dev"
    assert {"name": "QWEN_ENGINE_IMAGE", "value": "localhost/qwen-engine:dev"} in container["env"]


def env_of(documents: list[dict[str, Any]]) -> dict[str, str]:
    container = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item["value"] for item in container["env"]}


def test_the_readme_tells_the_values_as_they_are() -> None:
    assert (CHART / "README.md").read_text("utf-8") == chart_values.render(), "run `make chart`"


def test_a_value_without_a_comment_or_on_several_lines_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.b has no comment"):
        chart_values.parse_values("a:\n  # -- Told.\n  c: 1\n  b: 2\n")
    with pytest.raises(ValueError, match="on one line"):
        chart_values.parse_values("# -- Told.\na:\n  - 1\n")


def test_another_registry_takes_the_place_of_every_images_own() -> None:
    values = (
        "imageRegistry=mirror.local:5000/all,image.repository=ghcr.io/x/qwen-operator,"
        f"image.digest=sha256:{'0' * 64},engineImage.repository=localhost/qwen-engine"
    )
    documents = render("--set", values)
    container = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    place = "mirror.local:5000/all"
    assert container["image"] == f"{place}/x/qwen-operator:{version}@sha256:{'0' * 64}"
    env = env_of(documents)
    assert env["QWEN_ENGINE_IMAGE"] == f"{place}/qwen-engine:{version}"
    assert env["QWEN_VLLM_IMAGE"] == f"{place}/{DEFAULT_VLLM_IMAGE}"


def test_a_proxy_reaches_operator_and_engines_and_spares_the_cluster() -> None:
    documents = render(
        *("--set", "proxy.httpsProxy=http://proxy:3128,proxy.noProxy=example.org"),
        *("--set", "engineDefaults.imagePullSecrets[0].name=registry"),
        *("--set-string", "engineDefaults.env.HF_ENDPOINT=https://hub.local"),
    )
    env = env_of(documents)
    direct = "example.org,localhost,127.0.0.1,.svc,.cluster.local"
    assert env["HTTPS_PROXY"] == "http://proxy:3128"
    assert env["NO_PROXY"] == f"$(KUBERNETES_SERVICE_HOST),{direct}"
    defaults = parse_pod_defaults("", env["QWEN_ENGINE_DEFAULTS"])
    assert defaults.env == {
        "HF_ENDPOINT": "https://hub.local",
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": direct,
    }
    assert defaults.pull_secrets == ("registry",)
    plain = env_of(render())
    assert parse_pod_defaults("", plain["QWEN_ENGINE_DEFAULTS"]) == PodDefaults()
    assert "NO_PROXY" not in plain


def test_nobody_connects_to_the_operator_but_who_must() -> None:
    documents = render()
    policy = one(documents, "NetworkPolicy")["spec"]
    pod = one(documents, "Deployment")["spec"]["template"]
    selected = policy["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    open_ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert open_ports <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    closed = one(render("--set", "metricsApi.enabled=false"), "NetworkPolicy")["spec"]
    assert "metrics-api" not in str(closed["ingress"])
    off = render("--set", "networkPolicy.enabled=false")
    assert not [d for d in off if d["kind"] == "NetworkPolicy"]


def test_closed_engines_admit_the_operator_its_activator_and_whom_the_chart_names() -> None:
    named = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    admitted = ("--set-json", f"networkPolicy.engineFrom=[{json.dumps(named)}]")
    documents = render("--set", "activator.enabled=true", *admitted)
    pods = [d["spec"]["template"] for d in documents if d["kind"] == "Deployment"]
    *own, last = _engine_peers(documents)
    assert last == named
    assert len(own) == len(pods) == 2
    for peer in own:
        place = peer["namespaceSelector"]["matchLabels"]
        assert place == {"kubernetes.io/metadata.name": "place"}
        wanted = peer["podSelector"]["matchLabels"]
        assert sum(wanted.items() <= pod["metadata"]["labels"].items() for pod in pods) == 1
    assert len(_engine_peers(render())) == 1, "no activator, no peer"


def _engine_peers(documents: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Read the operator's peers as it does itself."""
    operator = [d for d in documents if not d["metadata"]["name"].endswith("-activator")]
    return parse_settings([], env_of(operator)).engine_peers


def test_a_disruption_budget_never_holds_up_a_drain() -> None:
    budget = one(render("--set", "podDisruptionBudget.enabled=true"), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert not [d for d in render() if d["kind"] == "PodDisruptionBudget"]


def test_the_crd_is_the_operators_to_apply_unless_it_is_told_not_to() -> None:
    documents = render()
    rule = one(documents, "ClusterRole", "-crd")["rules"][0]
    assert rule["resourceNames"] == ["qwendeployments.qwenoperator.io"]
    assert env_of(documents)["QWEN_INSTALL_CRD"] == "true"
    off = render("--set", "crds.install=false")
    assert env_of(off)["QWEN_INSTALL_CRD"] == "false"
    assert not [d for d in off if d["metadata"]["name"].endswith("-crd")]


@pytest.mark.parametrize("name", ["r" * 53, "my-qwen-operator", "a"])
def test_names_fit_whatever_the_release_is_called(name: str) -> None:
    result = helm("template", name, str(CHART), "--namespace", "p" * 60)
    assert result.returncode == 0, result.stderr
    for document in yaml.safe_load_all(result.stdout):
        assert len(document["metadata"]["name"]) <= (253 if "Role" in document["kind"] else 63)
        assert "--" not in document["metadata"]["name"]
        for value in document["metadata"]["labels"].values():
            assert len(value) <= 63
