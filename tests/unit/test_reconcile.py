"""reconcile: state in, actions and status out."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from qwen_operator import decision, names
from qwen_operator.reconcile import Observed, news, reconcile, with_failure
from qwen_operator.resources import Owner, build_deployment
from tests.unit.operator_states import (
    IMAGE,
    LATER,
    NOW,
    applied,
    carry_out,
    condition,
    flag,
    gpu_spec,
    h100,
    l4,
    look,
    resource,
    rolled_out,
    settle,
    template_of,
)


def test_a_new_resource_gets_account_service_and_deployment_in_this_order() -> None:
    outcome = look(resource())
    assert [m["kind"] for m in outcome.apply] == ["ServiceAccount", "Service", "Deployment"]
    for manifest in outcome.apply:
        owner = manifest["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["uid"]) == (names.KIND, "chat", "uid-1")
        assert (manifest["metadata"]["name"], manifest["metadata"]["namespace"]) == ("chat", "ns")


def test_looking_again_changes_nothing() -> None:
    about, observed = settle(resource())
    again = look(about, observed, now=LATER)
    about = {**about, "status": dict(again.status)}
    final = look(about, observed, now=LATER)
    assert (final.apply, final.status, news(final)) == ((), about["status"], [])


def test_a_resource_being_deleted_is_left_to_the_garbage_collector() -> None:
    about = resource()
    about["metadata"]["deletionTimestamp"] = NOW
    assert reconcile(about, Observed(), engine_image=IMAGE, now=NOW) is None


@pytest.mark.parametrize(
    ("spec", "reason", "way_out"),
    [
        ({"model": {"id": "Qwen/Qwen9-1T"}}, "UnknownModel", "spec.model.config"),
        ({"model": {"id": "a/b", "config": {}}}, "InvalidConfig", "architectures"),
        (
            {"model": {"id": "a/b", "config": {"architectures": ["GPT2LMHeadModel"]}}},
            "UnsupportedModel",
            "GPT2LMHeadModel",
        ),
        (gpu_spec(gpu={"count": 1}), "UnknownGPU", "spec.gpu.product"),
        (
            gpu_spec(gpu={"product": "NVIDIA-Z9"}),
            "UnknownGPU",
            "spec.gpu.memoryMiB",
        ),
        (
            gpu_spec(gpu={"resourceName": "nvidia.com/mig-1g.10gb"}),
            "UnknownGPU",
            "spec.gpu.memoryMiB",
        ),
        (
            {"model": {"id": "Qwen/Qwen3-32B"}, "gpu": {"product": "NVIDIA-L4"}},
            "DoesNotFit",
            "MiB",
        ),
        (
            {
                "model": {"id": "Qwen/Qwen3-0.6B"},
                "gpu": {"count": 0},
                "context": {"maxModelLen": 10_000_000},
            },
            "InvalidSetting",
            "spec.context.maxModelLen",
        ),
        (
            {
                "model": {"id": "Qwen/Qwen3-0.6B"},
                "gpu": {"count": 0},
                "engine": {"resources": {"limits": {"memory": "lots"}}},
            },
            "InvalidSpec",
            "spec.engine.resources.limits.memory",
        ),
        ({"model": {"id": "a/b", "uri": "s3://x"}}, "InvalidSpec", "spec.model.uri"),
        (
            {"model": {"id": "a/b", "config": {"num_hidden_layers": 10**12}}},
            "InvalidSpec",
            "spec.model.config.num_hidden_layers",
        ),
        (
            {"model": {"id": "a/b", "config": {"text_config": {"vocab_size": 10**12}}}},
            "InvalidSpec",
            "spec.model.config.vocab_size",
        ),
    ],
)
def test_what_cannot_be_planned_is_a_condition_and_one_warning(
    spec: dict[str, Any], reason: str, way_out: str
) -> None:
    outcome = look(resource(spec))
    assert outcome.apply == ()
    status, why, message = condition(outcome, "Planned")
    assert (status, why) == ("False", reason)
    assert way_out in message
    assert condition(outcome, "Available")[:2] == ("False", reason)
    assert condition(outcome, "Degraded")[:2] == ("True", reason)
    assert [(n.is_warning, n.reason) for n in news(outcome)] == [(True, reason)]


def test_a_fault_of_the_planner_is_told_and_harms_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(decision, "make_plan", fail)
    outcome = look(resource())
    assert condition(outcome, "Planned")[:2] == ("False", "InternalError")
    assert "ZeroDivisionError: division by zero" in condition(outcome, "Planned")[2]
    assert "Traceback" in caplog.text


def test_a_bad_spec_leaves_running_pods_alone_and_a_fix_is_taken_up() -> None:
    about, observed = settle(resource())
    observed = rolled_out(observed, ready=1)
    bad = {**about, "spec": {**about["spec"], "model": {"id": "Qwen/Qwen9-1T"}}}
    broken = look(bad, observed)
    assert broken.apply == ()
    assert condition(broken, "Planned")[1] == "UnknownModel"
    assert condition(broken, "Available")[0] == "True"
    assert "earlier plan go on serving" in condition(broken, "Degraded")[2]
    assert broken.status["plan"]["model"]["id"] == "Qwen/Qwen3-0.6B"

    fixed = look({**about, "status": dict(broken.status)}, observed)
    assert fixed.apply == ()  # back to the spec that the pods were made from
    assert condition(fixed, "Planned")[1] == "PlanFits"


def test_a_scale_leaves_the_pod_template_byte_identical() -> None:
    about, observed = settle(resource())
    scaled = look({**about, "spec": {**about["spec"], "replicas": 5}}, observed)
    assert [m["kind"] for m in scaled.apply] == ["Deployment"]
    assert applied(scaled, "Deployment")["spec"]["replicas"] == 5
    before = observed.deployment
    assert before is not None
    assert template_of(scaled) == before["spec"]["template"]


def test_another_model_makes_another_template() -> None:
    about, observed = settle(resource())
    spec = {**about["spec"], "model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"}}
    outcome = look({**about, "spec": spec}, observed)
    args = template_of(outcome)["spec"]["containers"][0]["args"]
    assert args[:2] == ["serve", "Qwen/Qwen2.5-0.5B-Instruct"]
    assert outcome.status["plan"]["model"]["id"] == "Qwen/Qwen2.5-0.5B-Instruct"


def test_an_operator_that_renders_otherwise_restarts_no_pod_of_an_unchanged_spec() -> None:
    about, observed = settle(resource())
    older = look(about).sight.verdict
    assert not hasattr(older, "reason")
    # what an older operator would have recorded: another flag, another reason in its plan
    old = dataclasses.replace(older, template=copy.deepcopy(older.template))
    old.template["spec"]["containers"][0]["args"].append("--flag-of-old")
    live = build_deployment(Owner("ns", "chat", "uid-1"), old, replicas=1)
    outcome = look(about, dataclasses.replace(observed, deployment=live))
    assert applied(outcome, "Deployment") is None

    changed = {**about["spec"], "context": {"maxModelLen": 1024}}
    outcome = look({**about, "spec": changed}, dataclasses.replace(observed, deployment=live))
    assert "--flag-of-old" not in template_of(outcome)["spec"]["containers"][0]["args"]


def test_a_new_default_image_is_rolled_out_but_not_over_a_named_one() -> None:
    about, observed = settle(resource())
    rolled = look(about, observed, image="qwen-engine:next")
    assert template_of(rolled)["spec"]["containers"][0]["image"] == "qwen-engine:next"

    spec = {**about["spec"], "engine": {**about["spec"]["engine"], "image": "mine:1"}}
    pinned, observed = settle(resource(spec))
    assert look(pinned, observed, image="qwen-engine:next").apply == ()
    assert pinned["status"]["image"] == "mine:1"


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ServiceAccount"])
def test_a_child_that_somebody_edits_or_deletes_is_put_right(kind: str) -> None:
    about, observed = settle(resource())
    field = {"Deployment": "deployment", "Service": "service", "ServiceAccount": "service_account"}
    gone = dataclasses.replace(observed, **{field[kind]: None})
    assert [m["kind"] for m in look(about, gone).apply] == [kind]

    edited = copy.deepcopy(getattr(observed, field[kind]))
    del edited["metadata"]["labels"]["app.kubernetes.io/name"]
    seen = dataclasses.replace(observed, **{field[kind]: edited})
    assert [m["kind"] for m in look(about, seen).apply] == [kind]


def test_defaults_and_normal_forms_of_the_api_server_are_no_edits() -> None:
    spec = {
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "gpu": {"count": 0},
        "engine": {
            "env": [{"name": "EMPTY", "value": ""}],
            "resources": {"limits": {"memory": "6144Mi"}, "requests": {"cpu": 2000}},
        },
    }
    about, observed = settle(resource(spec))
    live = copy.deepcopy(dict(observed.deployment or {}))
    live["metadata"] |= {"uid": "d", "resourceVersion": "7", "generation": 1}
    container = live["spec"]["template"]["spec"]["containers"][0]
    container["imagePullPolicy"] = "IfNotPresent"
    container["resources"] = {
        "limits": {"memory": "6Gi"},
        "requests": {"cpu": "2k", "memory": "6Gi"},
    }
    next(item for item in container["env"] if item["name"] == "EMPTY").pop("value")
    assert look(about, dataclasses.replace(observed, deployment=live)).apply == ()


def test_an_object_of_the_same_name_that_is_not_ours_is_never_touched() -> None:
    foreign = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {}}
    outcome = look(resource(), Observed(service=foreign))
    assert outcome.apply == ()
    status, reason, message = condition(outcome, "Degraded")
    assert (status, reason) == ("True", "NameTaken")
    assert message.startswith("Service chat exists")


def test_children_of_a_deleted_namesake_are_waited_for_quietly() -> None:
    old = resource()
    old["metadata"]["uid"] = "uid-0"
    _, left = settle(old)
    outcome = look(resource(), left)
    assert outcome.apply == ()
    assert condition(outcome, "Degraded")[0] == "False"
    assert outcome.status["replicas"] == 0


def test_a_child_that_is_going_is_not_applied_to() -> None:
    about, observed = settle(resource())
    going = copy.deepcopy(dict(observed.deployment or {}))
    going["metadata"] |= {"deletionTimestamp": NOW, "labels": {}}
    assert look(about, dataclasses.replace(observed, deployment=going)).apply == ()


def test_a_refused_manifest_becomes_a_condition_and_a_warning() -> None:
    outcome = with_failure(look(resource()), "Deployment: affinity: Invalid value", NOW)
    assert condition(outcome, "Degraded") == (
        "True",
        "ApplyRefused",
        "Deployment: affinity: Invalid value",
    )
    assert [n.reason for n in news(outcome)] == ["PlanFits", "ApplyRefused"]


def test_the_gpu_is_found_from_labels_and_pods_are_led_to_it() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(),)))
    device = outcome.status["plan"]["device"]
    assert (device["product"], device["memoryMiB"], device["capability"]) == (
        "NVIDIA-L4",
        23034,
        "8.9",
    )
    assert "l4-0" in device["source"]
    pod = template_of(outcome)["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_of_several_products_the_largest_is_taken_and_the_user_is_told() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(), h100(), l4("l4-1"))))
    assert outcome.status["plan"]["device"]["product"] == "NVIDIA-H100-80GB-HBM3"
    assert "spec.gpu.product chooses another: NVIDIA-L4" in condition(outcome, "Planned")[2]


def test_spec_gpu_product_chooses_among_nodes() -> None:
    about = resource(gpu_spec(gpu={"product": "NVIDIA-L4"}))
    outcome = look(about, Observed(nodes=(h100(), l4())))
    assert outcome.status["plan"]["device"]["product"] == "NVIDIA-L4"
    assert template_of(outcome)["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_spec_gpu_memory_wins_over_labels() -> None:
    about = resource(gpu_spec(gpu={"product": "NVIDIA-L4", "memoryMiB": 20000}))
    outcome = look(about, Observed(nodes=(l4(),)))
    assert outcome.status["plan"]["device"]["memoryMiB"] == 20000
    assert outcome.status["plan"]["device"]["source"] == "spec.gpu.memoryMiB"
    assert template_of(outcome)["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_a_product_that_no_node_has_yet_is_planned_from_the_catalogue() -> None:
    outcome = look(resource(gpu_spec(gpu={"product": "NVIDIA-L4"})))
    assert "catalogue" in outcome.status["plan"]["device"]["source"]
    assert "nodeSelector" not in template_of(outcome)["spec"]


def test_a_node_without_the_memory_label_is_named_with_the_label() -> None:
    bare = dataclasses.replace(l4("bare"), labels={"nvidia.com/gpu.product": "NVIDIA-Z9"})
    message = condition(look(resource(gpu_spec()), Observed(nodes=(bare,))), "Planned")[2]
    assert "node bare" in message
    assert "nvidia.com/gpu.memory" in message
    assert "spec.gpu.memoryMiB" in message


def test_labels_without_allocatable_gpus_do_not_count() -> None:
    idle = dataclasses.replace(l4(), allocatable={"nvidia.com/gpu": 0})
    outcome = look(resource(gpu_spec()), Observed(nodes=(idle,)))
    assert condition(outcome, "Planned")[1] == "UnknownGPU"


def test_pods_that_serve_keep_their_plan_when_labels_vanish_or_better_nodes_come() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(l4(),)))
    serving = rolled_out(observed, ready=1)
    for nodes in ((), (h100(),), (l4(), h100())):
        assert look(about, dataclasses.replace(serving, nodes=nodes)).apply == ()


def test_pods_that_wait_in_vain_are_planned_anew_for_nodes_that_are_there() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(l4(),)))
    waiting = rolled_out(observed, ready=0, replicas=1)
    outcome = look(about, dataclasses.replace(waiting, nodes=(h100(),)))
    assert template_of(outcome)["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"
    }


def test_without_a_memory_limit_a_cpu_deployment_gets_one_that_is_explained() -> None:
    about = resource({"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}})
    outcome = look(about)
    limit = template_of(outcome)["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert outcome.status["plan"]["device"]["memoryMiB"] == int(limit[:-2]) * 1024
    assert "chosen by the operator" in condition(outcome, "Planned")[2]


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("8Gi", 8192), ("8G", 7629), ("8192Mi", 8192), ("8e9", 7629), ("8589934592000m", 8192)],
)
def test_memory_limits_are_read_with_the_whole_quantity_grammar(limit: str, mib: int) -> None:
    spec = {
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "gpu": {"count": 0},
        "engine": {"resources": {"limits": {"memory": limit}}},
    }
    outcome = look(resource(spec))
    assert outcome.status["plan"]["device"]["memoryMiB"] == mib
    resources = template_of(outcome)["spec"]["containers"][0]["resources"]
    assert resources["limits"]["memory"] == limit  # as the user wrote it


def test_overrides_are_planned_around() -> None:
    spec = {
        "model": {"id": "Qwen/Qwen3-8B"},
        "gpu": {"product": "NVIDIA-L4"},
        "context": {"maxModelLen": 4096},
        "engine": {
            "overrides": {
                "blockSize": 64,
                "gpuMemoryUtilization": 0.8,
                "maxNumSeqs": 3,
                "maxNumBatchedTokens": 512,
                "numGpuBlocksOverride": 100,
            }
        },
    }
    outcome = look(resource(spec))
    asked = {
        "--max-model-len": "4096",
        "--block-size": "64",
        "--gpu-memory-utilization": "0.8",
        "--max-num-seqs": "3",
        "--max-num-batched-tokens": "512",
        "--num-gpu-blocks-override": "100",
    }
    assert {name: flag(outcome, name) for name in asked} == asked


def test_a_model_that_the_catalogue_lacks_is_planned_from_its_config() -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    spec = {"model": {"id": "me/tiny", "config": config, "uri": "pvc://models/tiny"}}
    outcome = look(resource({**spec, "gpu": {"count": 0}}))
    assert condition(outcome, "Planned")[1] == "PlanFits"
    assert flag(outcome, "--max-model-len") == "512"


def autoscaled(observed: Observed, replicas: int) -> Observed:
    """The state after an autoscaler wrote the Deployment's own replicas."""
    live = copy.deepcopy(dict(rolled_out(observed, ready=replicas).deployment or {}))
    live["spec"]["replicas"] = replicas
    live["metadata"]["managedFields"] = [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]
    return dataclasses.replace(observed, deployment=live)


def test_an_autoscaler_on_the_deployment_itself_is_not_fought_but_told() -> None:
    about, observed = settle(resource())
    seen = autoscaled(observed, 3)
    outcome = look(about, seen)
    deployment = applied(outcome, "Deployment")
    assert deployment is not None
    assert "replicas" not in deployment["spec"]
    kept = look(about, autoscaled(carry_out(outcome, seen), 3))
    assert kept.apply == ()
    assert kept.status["ready"] == "3/3"
    reason, message = condition(kept, "Progressing")[1:]
    assert reason == "ScaledByAutoscaler"
    assert "let it target this QwenDeployment" in message


def test_a_user_who_scales_is_obeyed_over_an_autoscaler_that_may_be_gone() -> None:
    about, observed = settle(resource())
    scaled = {**about, "spec": {**about["spec"], "replicas": 2}}
    deployment = applied(look(scaled, autoscaled(observed, 3)), "Deployment")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
