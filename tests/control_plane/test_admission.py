"""The API server takes what can be meant, and says about the rest what to write instead."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_engine.planning import PlanningError
from qwen_operator.decision import refusal_of
from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec import parse_spec
from qwen_operator.spec_plan import plan_spec
from tests.cluster.client import Cluster, CommandError
from tests.control_plane.qwen import SAMPLES, Qwen, manifest

MODEL = {"id": "Qwen/Qwen3-0.6B"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_accepted_as_it_is(qwen: Qwen, sample: Path) -> None:
    qwen.kubectl("apply", "-f", str(sample))
    name = yaml.safe_load(sample.read_text("utf-8"))["metadata"]["name"]
    assert qwen.get("qwen", name)["spec"]["replicas"] == 1


def test_a_model_id_is_enough_and_the_defaults_are_shown(qwen: Qwen) -> None:
    qwen.apply("least", model=MODEL)
    assert qwen.get("qwen", "least")["spec"] == {
        "model": MODEL,
        "gpu": {"count": 1, "resourceName": "nvidia.com/gpu"},
        "replicas": 1,
        "service": {"type": "ClusterIP", "port": 8000},
    }


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"model": {}}, "spec.model.id: Required value"),
    ({"model": {"id": ""}}, "spec.model.id"),
    ({"model": {"id": "a/b/c"}}, "spec.model.id"),
    ({"model": {**MODEL, "uri": "s3://bucket"}}, 'spec.model.uri "s3://bucket" starts with no'),
    ({"model": {**MODEL, "uri": "hf://a/b/c"}}, "write hf://OWNER/NAME"),
    ({"model": {**MODEL, "uri": "pvc://"}}, "write pvc://CLAIM/FOLDER"),
    ({"model": {**MODEL, "uri": "pvc://Claim/x"}}, "write pvc://CLAIM/FOLDER"),
    ({"model": {**MODEL, "uri": "file:///"}}, "write file:///FOLDER"),
    ({"model": {**MODEL, "uri": "pvc://a/../b"}}, 'must not contain ".."'),
    ({"model": {**MODEL, "uri": "pvc://a", "revision": "x"}}, "spec.model.revision chooses"),
    (
        {"model": {**MODEL, "uri": "pvc://a", "tokenSecretRef": {"name": "x"}}},
        "spec.model.tokenSecretRef is for the Hugging Face hub",
    ),
    (
        {"model": {**MODEL, "uri": "pvc://a", "cache": {"persistentVolumeClaim": "x"}}},
        "spec.model.cache keeps downloads",
    ),
    ({"model": MODEL, "gpu": {"count": "many"}}, "spec.gpu.count"),  # K8-045
    ({"model": MODEL, "gpu": {"count": -1}}, "spec.gpu.count"),
    ({"model": MODEL, "gpu": {"count": 2}}, "spec.gpu.count must be 0 (CPU) or 1"),
    (
        {"model": MODEL, "engine": {"runtime": "VLLM"}, "gpu": {"count": 0}},
        "spec.engine.runtime: VLLM needs a GPU",
    ),
    ({"model": MODEL, "networkPolicy": {"from": []}}, "should have at least 1 items"),
    ({"model": MODEL, "networkPolicy": {"from": [{}]}}, "should have at least 1 properties"),
    (
        {
            "model": MODEL,
            "networkPolicy": {"from": [{"podSelector": {}, "ipBlock": {"cidr": "::/0"}}]},
        },
        "make two of it",
    ),
    (
        {"model": MODEL, "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}},
        "spec.networkPolicy.from[0].ipBlock.cidr",
    ),
    ({"model": MODEL, "engine": {"runtime": "TGI"}}, '"Qwen", "VLLM"'),
    ({"model": MODEL, "engine": {"version": "0.29.0"}}, "spec.engine.version is for vLLM"),
    (
        {"model": MODEL, "engine": {"runtime": "VLLM", "overrides": {"swapSpaceGiB": 1}}},
        "vLLM has no swap space",
    ),
    (
        {"model": MODEL, "engine": {"runtime": "VLLM", "overrides": {"quantization": "int8"}}},
        "name a packed checkpoint",
    ),
    (
        {"model": MODEL, "engine": {"runtime": "VLLM", "overrides": {"tensorParallelSize": 2}}},
        "a pod may have spec.gpu.count GPUs",
    ),
    (
        {"model": MODEL, "engine": {"overrides": {"tensorParallelSize": 1}}},
        "tensorParallelSize is for vLLM",
    ),
    ({"model": MODEL, "engine": {"overrides": {"kvCacheDtype": "int4"}}}, '"auto", "int8", "fp8"'),
    ({"model": MODEL, "engine": {"extraArgs": ["--kv-cache-dtype=fp8"]}}, "kvCacheDtype"),
    (
        {"model": MODEL, "gpu": {"count": 0, "product": "NVIDIA-L4"}},
        "which means CPU: remove spec.gpu.product",
    ),
    ({"model": MODEL, "gpu": {"count": 0, "memoryMiB": 9000}}, "which means CPU: remove"),
    ({"model": MODEL, "gpu": {"memoryMiB": 24}}, "spec.gpu.memoryMiB"),
    ({"model": MODEL, "gpu": {"resourceName": "gpu"}}, "spec.gpu.resourceName"),
    (
        {
            "model": MODEL,
            "gpu": {"count": 0},
            "engine": {"overrides": {"gpuMemoryUtilization": 0.9}},
        },
        "size its memory with spec.engine.resources.limits.memory",
    ),
    (
        {"model": MODEL, "engine": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
        "use spec.gpu.count",
    ),
    (
        {"model": MODEL, "engine": {"resources": {"requests": {"nvidia.com/gpu": "1"}}}},
        "use spec.gpu.count",
    ),
    (
        {"model": MODEL, "engine": {"resources": {"limits": {"memory": "8 GB"}}}},
        "spec.engine.resources.limits.memory",
    ),
    ({"model": MODEL, "engine": {"extraArgs": ["--port=1"]}}, "are set by the operator"),
    (
        {"model": MODEL, "engine": {"extraArgs": ["--max-model-len", "9"]}},
        "spec.context.maxModelLen",
    ),
    (
        {
            "model": MODEL,
            "engine": {
                "env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
            },
        },
        "give value or valueFrom, not both",
    ),
    ({"model": MODEL, "engine": {"overrides": {"blockSize": 17}}}, '"16", "32", "64", "128"'),
    ({"model": MODEL, "engine": {"overrides": {"dtype": "int8"}}}, '"bfloat16"'),
    ({"model": MODEL, "context": {"maxModelLen": 0}}, "spec.context.maxModelLen"),
    ({"model": MODEL, "replicas": -1}, "spec.replicas"),
    ({"model": MODEL, "service": {"type": "Ingress"}}, '"LoadBalancer"'),
    ({"model": MODEL, "service": {"port": 70000}}, "spec.service.port"),
    ({"model": MODEL, "autoscale": {}}, 'unknown field "spec.autoscale"'),
    ({"model": MODEL, "autoscaling": {}}, "spec.autoscaling.maxReplicas: Required value"),
    (
        {"model": MODEL, "autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "minReplicas is above spec.autoscaling.maxReplicas; lower the one",
    ),
    (
        {"model": MODEL, "autoscaling": {"maxReplicas": 2, "targetFreeRatio": 0.9}},
        "spec.autoscaling.targetFreeRatio",
    ),
    (
        {"model": MODEL, "autoscaling": {"maxReplicas": 2, "provider": "Knative"}},
        'supported values: "BuiltIn", "KEDA", "None"',
    ),
    (
        {"model": MODEL, "autoscaling": {"maxReplicas": 2, "hold": {"queue": 5}}},
        'unknown field "spec.autoscaling.hold.queue"',
    ),
    (
        {"model": MODEL, "autoscaling": {"maxReplicas": 2, "idleSeconds": 1}},
        "spec.autoscaling.idleSeconds",
    ),
]


@pytest.mark.parametrize(("spec", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_what_cannot_be_meant_is_refused_with_the_way_out(
    served: Cluster, spec: dict[str, Any], words: str
) -> None:
    text = json.dumps(manifest("x", **spec))
    with pytest.raises(CommandError) as refused:
        served.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert words in refused.value.stderr


IMPOSSIBLE: list[dict[str, Any]] = [
    {
        "model": MODEL,
        "gpu": {"product": "Tesla-T4"},
        "engine": {"overrides": {"dtype": "bfloat16"}},
    },
    {"model": MODEL, "gpu": {"product": "NVIDIA-A100-SXM4-80GB-MIG-INVALID"}},
    {
        "model": MODEL,
        "gpu": {"product": "NVIDIA-L4"},
        "context": {"maxModelLen": 4096},
        "engine": {"overrides": {"numGpuBlocksOverride": 255, "blockSize": 16}},
    },
]


@pytest.mark.parametrize("spec", IMPOSSIBLE)
def test_a_plan_that_cannot_work_is_refused_in_the_words_that_planned_false_would_have(
    served: Cluster, spec: dict[str, Any]
) -> None:
    with pytest.raises((PlanningError, InvalidSpecError)) as told:
        plan_spec(parse_spec(spec), ())
    assert isinstance(told.value, PlanningError | InvalidSpecError)
    text = json.dumps(manifest("x", **spec))
    with pytest.raises(CommandError) as refused:
        served.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert refusal_of(told.value).message in refused.value.stderr


def test_what_is_just_possible_is_accepted(served: Cluster) -> None:
    spec = copy.deepcopy(IMPOSSIBLE[2])
    spec["engine"]["overrides"]["numGpuBlocksOverride"] = 256
    other = {**IMPOSSIBLE[0], "gpu": {"product": "NVIDIA-L4"}}
    for possible in (spec, other):
        text = json.dumps(manifest("x", **possible))
        served.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)


@pytest.mark.parametrize("name", ["qwen3-0.6b", "3b", "a" * 64])
def test_a_name_that_no_service_may_have_is_refused_with_one_that_may(
    served: Cluster, name: str
) -> None:
    text = json.dumps(manifest(name))
    with pytest.raises(CommandError) as refused:
        served.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert f'metadata.name "{name}" also names the Service' in refused.value.stderr
    assert "such as qwen3-0-6b" in refused.value.stderr


def test_every_field_explains_itself(served: Cluster) -> None:
    crd = served.get("crd", "qwendeployments.qwenoperator.io")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    silent = [
        path
        for path, field in _fields(schema, "")
        if len(field.get("description", "")) < 8 and path not in (".metadata",)
    ]
    assert silent == []


def test_every_spec_field_says_what_happens_when_it_is_left_out(served: Cluster) -> None:
    crd = served.get("crd", "qwendeployments.qwenoperator.io")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    leaves = [
        (path, field["description"])
        for path, field in _fields(schema["properties"]["spec"], ".spec")
        if "properties" not in field
    ]
    words = ("default", "Default", "Required", "Left out")
    quiet = [path for path, text in leaves if not any(word in text for word in words)]
    # these only make sense together with a parent that says it
    assert quiet == [".spec.template.tolerations[].value"]


def test_kubectl_explain_reads_like_a_manual(served: Cluster) -> None:
    text = served.kubectl("explain", "qwen.spec")
    for field in ("model", "gpu", "context", "replicas", "service", "engine", "template"):
        assert f"\n  {field}\t<" in text
    assert "Only spec.model.id is required" in " ".join(served.kubectl("explain", "qwen").split())


def _fields(schema: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if here not in (".apiVersion", ".kind"):
            found.append((here, field))
        found += _fields(field, here)
        found += _fields(field.get("items", {}), f"{here}[]")
    return found
