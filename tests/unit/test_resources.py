"""Manifests: what the engine's pod is made of, byte for byte."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_operator import names
from qwen_operator.decision import Planned, recorded
from qwen_operator.pod_resources import build_resources
from qwen_operator.pod_template import build_pod_template, startup_seconds
from qwen_operator.spec import parse_spec
from tests.unit.operator_states import applied, look, resource, settle, template_of

GOLDEN = Path(__file__).parent / "golden"
# A plan that no change of the planner can change: these tests are about rendering.
PLAN = {
    "settings": [
        {"flag": "--dtype", "value": "bfloat16", "reason": "…"},
        {"flag": "--max-model-len", "value": "8192", "reason": "…"},
        {"flag": "--enable-prefix-caching", "value": "true", "reason": "…"},
    ],
    "loadBytes": 1_192_099_840,
    "device": {"count": 1},
    "grace": {"seconds": 135, "drainSeconds": 120, "how": "…"},
}
HOST_LEDGER = [
    {"component": "host-runtime", "bytes": 734_003_200},
    {"component": "swap", "bytes": 4 * 2**30 - 1000},  # whole blocks
]
SPECS: dict[str, Any] = {
    "cpu-pvc": {
        "model": {"id": "Qwen/Qwen3-0.6B", "uri": "pvc://models/qwen/0.6b"},
        "gpu": {"count": 0},
    },
    "gpu-hub": {
        "model": {
            "id": "Qwen/Qwen3-8B",
            "revision": "b968826d9c46dd6066d109eabc6255188de91218",
            "tokenSecretRef": {"name": "hf", "key": "token"},
            "cache": {"persistentVolumeClaim": "hub"},
        },
        "engine": {
            "image": "registry.example/engine:1",
            "extraArgs": ["--seed", "7"],
            "env": [{"name": "HF_ENDPOINT", "value": "https://mirror.example"}],
            "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "32Gi"}},
        },
        "template": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
        },
    },
    "gpu-swap": {"model": {"id": "Qwen/Qwen3-8B"}},
    "cpu-folder": {
        "model": {"id": "Qwen/Qwen3-0.6B", "uri": "file:///srv/models/q"},
        "gpu": {"count": 0},
    },
}


def render(spec: dict[str, Any]) -> dict[str, Any]:
    parsed = parse_spec(spec)
    on_gpu = parsed.gpu.count > 0
    selector = {"nvidia.com/gpu.product": "NVIDIA-L4"} if on_gpu else {}
    plan = {**PLAN, "device": {"count": parsed.gpu.count}}
    plan |= {"hostLedger": HOST_LEDGER} if on_gpu else {}
    planned = Planned(plan, selector, None if on_gpu else 6 * 2**30)
    return build_pod_template("chat", parsed, planned, image=parsed.engine.image or "engine:1")


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_pod_template_is_rendered_byte_for_byte_as_before(name: str) -> None:
    """A difference here restarts every pod of users who change anything: make it on purpose.

    To accept it, write what is printed into tests/unit/golden/.
    """
    golden = GOLDEN / f"pod-template-{name}.yaml"
    found = yaml.safe_dump(render(SPECS[name]), sort_keys=True, allow_unicode=True)
    expected = golden.read_text("utf-8") if golden.exists() else ""
    changes = difflib.unified_diff(expected.splitlines(), found.splitlines(), str(golden), "now")
    assert found == expected, "\n".join(changes)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_pod_is_locked_down(name: str) -> None:
    pod = render(SPECS[name])["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    models = [m for m in container["volumeMounts"] if m["mountPath"] == "/models"]
    assert all(mount["readOnly"] for mount in models)


def test_a_claim_is_mounted_as_it_is_and_no_cache_is_added() -> None:
    pod = render(SPECS["cpu-pvc"])["spec"]
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"claimName": "models", "readOnly": True}]
    assert [v["name"] for v in pod["volumes"]] == ["tmp", "model"]
    assert pod["containers"][0]["args"][:2] == ["serve", "/models/qwen/0.6b"]


def test_the_startup_allowance_grows_with_the_bytes_to_load() -> None:
    small, large = ({**PLAN, "loadBytes": n} for n in (10**9, 10**11))
    spec = parse_spec(SPECS["cpu-pvc"])
    allowed = [
        startup_seconds(build_pod_template("c", spec, Planned(plan, {}, 2**30), image="i"))
        for plan in (small, large)
    ]
    assert allowed == [120 + 20, 120 + 2000]
    hub = parse_spec({"model": {"id": "a/b"}})
    template = build_pod_template("c", hub, Planned(large, {}), image="i")
    assert startup_seconds(template) == 120 + 2000 + 5000
    note = template["metadata"]["annotations"][names.ALLOWANCE_ANNOTATION]
    assert note == "7120 s = 120 s + 100000000000 B at 50 MB/s + download at 20 MB/s"


def test_the_deployment_waits_longer_than_its_pods_may_take() -> None:
    deployment = applied(look(resource()), "Deployment")
    assert deployment is not None
    spec = deployment["spec"]
    assert spec["progressDeadlineSeconds"] > startup_seconds(spec["template"])


def test_the_true_model_id_is_an_annotation_and_its_label_is_sanitised() -> None:
    metadata = template_of(look(resource()))["metadata"]
    assert metadata["annotations"][names.MODEL_ANNOTATION] == "Qwen/Qwen3-0.6B"
    assert metadata["labels"][names.MODEL_LABEL] == "Qwen-Qwen3-0.6B"


def test_annotations_and_labels_of_the_resource_do_not_reach_its_pods() -> None:
    about = resource()
    about["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    about["metadata"]["labels"] = {"team": "a"}
    assert template_of(look(about)) == template_of(look(resource()))


def test_the_users_env_wins_over_ours_and_names_stay_unique() -> None:
    spec = {
        "model": {"id": "a/b"},
        "engine": {"env": [{"name": "HF_HOME", "value": "/elsewhere"}]},
    }
    env = render(spec)["spec"]["containers"][0]["env"]
    assert [item["value"] for item in env if item["name"] == "HF_HOME"] == ["/elsewhere"]
    assert len({item["name"] for item in env}) == len(env)


def test_the_gpus_own_taint_is_tolerated_once() -> None:
    """K8-033."""
    own = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    spec = {"model": {"id": "a/b"}, "template": {"tolerations": [own]}}
    assert render(spec)["spec"]["tolerations"] == [own]
    assert render({"model": {"id": "a/b"}})["spec"]["tolerations"] == [own]
    assert "tolerations" not in render(SPECS["cpu-pvc"])["spec"]


@pytest.mark.parametrize(
    ("spec", "memory", "expected"),
    [
        (
            {"gpu": {"count": 0}},
            6 * 2**30,
            {"limits": {"memory": "6Gi"}, "requests": {"cpu": "500m", "memory": "6Gi"}},
        ),
        (
            {"gpu": {"count": 0}, "engine": {"resources": {"limits": {"cpu": "200m"}}}},
            2**30 + 1,
            {
                "limits": {"cpu": "200m", "memory": "1073741825"},
                "requests": {"memory": "1073741825"},
            },
        ),
        (
            {},
            None,
            {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "500m", "memory": "4Gi"}},
        ),
        (
            {"engine": {"resources": {"limits": {"memory": "2Gi"}}}},
            None,
            {
                "limits": {"memory": "2Gi", "nvidia.com/gpu": 1},
                "requests": {"cpu": "500m", "memory": "2Gi"},
            },
        ),
    ],
)
def test_defaults_never_ask_for_more_than_the_limit(
    spec: dict[str, Any], memory: int | None, expected: dict[str, Any]
) -> None:
    parsed = parse_spec({"model": {"id": "a/b"}, **spec})
    assert build_resources(parsed, memory, swap_bytes=0, num_gpus=parsed.gpu.count) == expected


def test_a_decision_is_read_back_from_the_deployment_as_it_was_written() -> None:
    _, observed = settle(resource())
    found = recorded(observed.deployment)
    assert found is not None
    assert observed.deployment is not None
    assert found.template == observed.deployment["spec"]["template"]
    assert found.plan["model"]["id"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"plan": {}, "template": {}}', "null"])
def test_a_decision_that_somebody_damaged_is_made_again(text: str) -> None:
    about, observed = settle(resource())
    damaged = copy.deepcopy(dict(observed.deployment or {}))
    damaged["metadata"]["annotations"][names.DECISION_ANNOTATION] = text
    assert recorded(damaged) is None
    again = look(about, dataclasses.replace(observed, deployment=damaged))
    assert again.status["plan"] == about["status"]["plan"]
    assert [m["kind"] for m in again.apply] == ["Deployment"]


def test_service_and_port_follow_the_spec() -> None:
    spec = {**resource()["spec"], "service": {"type": "NodePort", "port": 80}}
    outcome = look(resource(spec))
    service = applied(outcome, "Service")
    assert service is not None
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert outcome.status["endpoint"] == "http://chat.ns.svc:80/v1"
