"""reconcile: spec.engine.runtime: VLLM. The same plan, address and status; vLLM's pod."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_operator import names
from qwen_operator.node_facts import NodeFacts
from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome
from qwen_operator.runtime import DEFAULT_VLLM_IMAGE, NEWEST
from tests.unit.operator_states import (
    applied,
    carry_out,
    condition,
    h100,
    l4,
    look,
    resource,
    template_of,
)

Json = dict[str, Any]
LARGE = {"id": "Qwen/Qwen3-32B"}  # 61 GiB: two cards of 46 GB
L40S = NodeFacts(
    "l40s-0",
    {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"},
    {"nvidia.com/gpu": 4},
)
ON_L40S = Observed(nodes=(L40S,))
MISTRAL_CONFIG = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 14336, "vocab_size": 32768, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def vllm(model: Json = LARGE, *, count: int = 4, **engine: Any) -> Json:
    return resource({
        "model": model,
        "gpu": {"count": count},
        "engine": {"runtime": "VLLM", **engine},
        "replicas": 1,
    })  # fmt: skip


def container(outcome: Outcome) -> Json:
    found: Json = template_of(outcome)["spec"]["containers"][0]
    return found


def test_the_pod_starts_vllm_whatever_its_image_starts_with() -> None:
    found = container(look(vllm(), ON_L40S))
    assert found["image"] == DEFAULT_VLLM_IMAGE
    assert found["command"] == ["vllm"]
    assert found["args"][:2] == ["serve", LARGE["id"]]
    assert found["ports"] == [{"name": "http", "containerPort": 8000}]
    paths = {
        found[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
    }
    assert paths == {"/health"}


def test_as_few_gpus_as_the_model_fits_on_are_asked_for_and_the_plan_says_so() -> None:
    outcome = look(vllm(), ON_L40S)
    found, plan = container(outcome), outcome.status["plan"]
    assert found["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert found["args"][found["args"].index("--tensor-parallel-size") + 1] == "2"
    assert (plan["engine"], plan["device"]["count"]) == ("vllm", 2)
    assert "2 of the 4 GPUs that spec.gpu.count allows" in plan["notes"][0]


def test_a_demanded_number_of_gpus_is_obeyed() -> None:
    outcome = look(vllm(overrides={"tensorParallelSize": 4}), ON_L40S)
    assert container(outcome)["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert "notes" not in outcome.status["plan"]


def test_gpus_of_one_pod_share_memory_and_each_has_its_process() -> None:
    several, one = look(vllm(), ON_L40S), look(vllm({"id": "Qwen/Qwen3-0.6B"}), ON_L40S)
    volumes = {v["name"]: v for v in template_of(several)["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(several)["volumeMounts"]
    assert container(several)["resources"]["requests"]["memory"] == "10Gi"
    assert [v["name"] for v in template_of(one)["spec"]["volumes"]] == ["tmp", "cache"]
    assert container(one)["resources"]["requests"]["memory"] == "4Gi"


def test_no_pod_is_given_more_gpus_than_a_node_has() -> None:
    outcome = look(vllm(count=8), Observed(nodes=(l4("a"), l4("b"))))
    assert condition(outcome, "Planned")[1] == "DoesNotFit"
    assert "4 such GPUs fit it (spec.gpu.count: 4" in condition(outcome, "Planned")[2]


def test_slices_of_a_card_do_not_work_together() -> None:
    resource_name = "nvidia.com/mig-3g.40gb"
    node = NodeFacts(
        "mig-0", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, {resource_name: 8}
    )
    about = vllm()
    about["spec"]["gpu"]["resourceName"] = resource_name
    assert condition(look(about, Observed(nodes=(node,))), "Planned")[1] == "DoesNotFit"


def test_a_user_without_a_name_in_the_image_has_one_in_the_environment() -> None:
    env = {e["name"]: e.get("value") for e in container(look(vllm(), ON_L40S))["env"]}
    assert (env["USER"], env["HOME"], env["VLLM_NO_USAGE_STATS"]) == ("vllm", "/tmp", "1")
    assert env["HF_HOME"].startswith("/cache/")


@pytest.mark.parametrize(
    ("engine", "image", "drains"),
    [
        ({}, DEFAULT_VLLM_IMAGE, True),
        ({"version": "0.17.1"}, "vllm/vllm-openai:v0.17.1", False),
        ({"version": NEWEST}, DEFAULT_VLLM_IMAGE, True),
        ({"image": "registry:5000/vllm:v0.12.0-cu129"}, "registry:5000/vllm:v0.12.0-cu129", False),
        ({"image": "registry:5000/vllm"}, "registry:5000/vllm", True),
        ({"image": "my/vllm:new", "version": "0.12.0"}, "my/vllm:new", False),
    ],
)
def test_only_flags_that_the_release_knows_are_given(
    engine: Json, image: str, drains: bool
) -> None:
    found = container(look(vllm(**engine), ON_L40S))
    assert found["image"] == image
    assert ("--shutdown-timeout" in found["args"]) is drains
    assert not {"--swap-space", "--device"} & set(found["args"])


def test_a_release_has_its_own_prices() -> None:
    graphs = [
        next(
            line["bytes"]
            for line in look(vllm(version=version), ON_L40S).status["plan"]["ledger"]
            if line["component"] == "kv-cache"
        )
        for version in ("0.16.0", NEWEST)
    ]
    assert graphs[0] != graphs[1]


def test_a_tag_that_names_no_release_is_told_with_the_release_that_is_planned() -> None:
    warnings = look(vllm(image="my/vllm:nightly"), ON_L40S).status["plan"]["warnings"]
    assert any("names no release of vLLM" in w and NEWEST in w for w in warnings)
    assert "warnings" not in look(vllm(image="my/vllm:v0.29.0"), ON_L40S).status["plan"]


@pytest.mark.parametrize("config", [None, MISTRAL_CONFIG])
def test_a_model_that_our_engine_lacks_is_refused_with_the_other_as_the_way_out(
    config: Json | None,
) -> None:
    model = {"id": "Qwen/Qwen2.5-VL-7B-Instruct", **({"config": config} if config else {})}
    ours = look(resource({"model": model}), Observed(nodes=(h100(),)))
    assert condition(ours, "Planned")[1] == "UnsupportedModel"
    assert "spec.engine.runtime: VLLM" in condition(ours, "Planned")[2]
    theirs = look(vllm(model, count=1), Observed(nodes=(h100(),)))
    assert condition(theirs, "Planned")[1] == "PlanFits"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"gpu": {"count": 2}}, "spec.gpu.count"),
        ({"engine": {"version": "0.29.0"}}, "spec.engine.version"),
        ({"engine": {"overrides": {"tensorParallelSize": 1}}}, "overrides.tensorParallelSize"),
        ({"engine": {"runtime": "TGI"}}, "spec.engine.runtime"),
        ({"engine": {"runtime": "VLLM"}, "gpu": {"count": 0}}, "spec.engine.runtime"),
        ({"engine": {"runtime": "VLLM", "version": "0.8.5"}}, "spec.engine.version"),
        ({"engine": {"runtime": "VLLM", "image": "x:v0.6.0"}}, "spec.engine.version"),
        ({"engine": {"runtime": "VLLM", "overrides": {"swapSpaceGiB": 4}}}, "swapSpaceGiB"),
        (
            {
                "engine": {
                    "runtime": "VLLM",
                    "version": "0.17.0",
                    "overrides": {"kvCacheDtype": "int8"},
                }
            },
            "kvCacheDtype",
        ),
        ({"engine": {"runtime": "VLLM", "overrides": {"quantization": "int8"}}}, "quantization"),
        (
            {"engine": {"runtime": "VLLM", "overrides": {"tensorParallelSize": 2}}},
            "overrides.tensorParallelSize",
        ),
    ],
)
def test_what_a_runtime_does_not_know_is_refused_by_field(spec: Json, field: str) -> None:
    outcome = look(resource({"model": {"id": "Qwen/Qwen3-8B"}, **spec}), Observed(nodes=(h100(),)))
    _, reason, message = condition(outcome, "Planned")[:3]
    assert reason == "InvalidSpec"
    assert field in message.split(": ")[0]


def test_a_spec_that_names_our_own_engine_restarts_no_pod() -> None:
    before = look(resource({"model": {"id": "Qwen/Qwen3-8B"}}), Observed(nodes=(l4(),)))
    named = resource({"model": {"id": "Qwen/Qwen3-8B"}, "engine": {"runtime": "Qwen"}})
    after = look(named, Observed(nodes=(l4(),)))
    assert template_of(after) == template_of(before)
    meanings = [
        (applied(o, "Deployment") or {})["metadata"]["annotations"][names.MEANING_ANNOTATION]
        for o in (before, after)
    ]
    assert meanings[0] == meanings[1]


def test_what_vllm_does_not_report_is_said_and_not_waited_for() -> None:
    outcome = look(vllm(), ON_L40S)
    again = look(vllm(), carry_out(outcome, ON_L40S))
    assert condition(again, "PlanAccurate")[1] == "NotReported"


def test_a_signal_that_vllm_does_not_give_is_said_where_autoscaling_is_wished() -> None:
    about = vllm()
    about["spec"]["autoscaling"] = {"maxReplicas": 3}
    [warning] = look(about, ON_L40S).status["plan"]["warnings"]
    assert "spec.autoscaling: vLLM counts neither" in warning
