"""reconcile: state in, actions and status out."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from qwen_operator import names, spec_plan
from qwen_operator.observed import Observed
from qwen_operator.reconcile import news, reconcile, with_failure
from qwen_operator.resources import Owner, build_deployment
from tests.unit.operator_states import (
    IMAGE,
    LATER,
    NOW,
    applied,
    condition,
    gpu_spec,
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

    monkeypatch.setattr(spec_plan, "make_plan", fail)
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
    assert [m["kind"] for m in scaled.apply] == ["Deployment", "PodDisruptionBudget"]
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
