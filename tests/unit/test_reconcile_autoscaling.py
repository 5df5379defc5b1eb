"""reconcile: the HorizontalPodAutoscaler, status.autoscaling and the condition Autoscaling."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_operator.autoscaling.tuning import DEFAULT_TUNING
from qwen_operator.errors import InvalidSpecError
from qwen_operator.observed import Observed
from qwen_operator.pods import Problem
from qwen_operator.reconcile import news
from qwen_operator.scaling_view import ScalingView
from qwen_operator.spec import parse_spec
from qwen_operator.spec_autoscaling import AutoscalingSpec, parse_autoscaling
from tests.unit.operator_states import (
    Json,
    applied,
    carry_out,
    condition,
    look,
    resource,
    rolled_out,
    settle,
)
from tests.unit.test_status_schema import CRD, undeclared

KIND = "HorizontalPodAutoscaler"
VIEW = ScalingView(2, "BlocksNeeded", 0.31, (41.4, 39.6))


def scaled(**autoscaling: Any) -> Json:
    """A QwenDeployment that scales; 1 to 5 replicas by default."""
    about = resource()
    about["spec"]["autoscaling"] = {"maxReplicas": 5, **autoscaling}
    return about


def seen(view: ScalingView | None, about: Json | None = None) -> Observed:
    """Everything applied, one pod ready, and something decided."""
    observed = settle(about or scaled())[1]
    autoscaler = observed.autoscaler
    return dataclasses.replace(rolled_out(observed, ready=1), autoscaler=autoscaler, scaling=view)


def test_an_hpa_of_the_same_name_scales_the_qwendeployment_by_the_operators_figure() -> None:
    manifest = applied(look(scaled(minReplicas=2)), KIND)
    assert manifest is not None
    assert manifest["apiVersion"] == "autoscaling/v2"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    spec = manifest["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "qwenoperator.io/v1alpha1",
        "kind": "QwenDeployment",
        "name": "chat",
    }
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    [metric] = spec["metrics"]
    assert metric["external"] == {
        "metric": {
            "name": "qwen_replicas_needed",
            "selector": {"matchLabels": {"qwenoperator.io/deployment": "chat"}},
        },
        "target": {"type": "AverageValue", "averageValue": "1"},
    }


def test_it_goes_up_at_once_and_down_slowly_unless_told_otherwise_field_by_field() -> None:
    manifest = applied(look(scaled()), KIND)
    assert manifest is not None
    default = manifest["spec"]["behavior"]
    assert default["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert default["scaleDown"]["stabilizationWindowSeconds"] == 120
    given = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    manifest = applied(look(scaled(behavior=given)), KIND)
    assert manifest is not None
    changed = manifest["spec"]["behavior"]
    assert changed["scaleUp"] == default["scaleUp"]
    assert changed["scaleDown"] == {**default["scaleDown"], "stabilizationWindowSeconds": 0}


def test_the_crd_tells_the_defaults_that_hold() -> None:
    [version] = yaml.safe_load(Path(CRD).read_text("utf-8"))["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields = spec["autoscaling"]["properties"]
    window = fields["behavior"]["properties"]["scaleDown"]["properties"]
    told = window["stabilizationWindowSeconds"]["description"]
    assert f"(default: {DEFAULT_TUNING.look_back_seconds:.0f}," in told
    minutes = f"down after {DEFAULT_TUNING.look_back_seconds / 60:.0f} minutes"
    assert minutes in fields["behavior"]["description"]
    assert f"(default: {DEFAULT_TUNING.free_ratio})" in fields["targetFreeRatio"]["description"]


def test_a_scale_in_window_is_how_long_the_decision_looks_back() -> None:
    def parsed(**down: int) -> AutoscalingSpec:
        found = parse_autoscaling({"maxReplicas": 3, "behavior": {"scaleDown": down}})
        assert found is not None
        return found

    assert parsed().tuning == dataclasses.replace(DEFAULT_TUNING)
    short, long = parsed(stabilizationWindowSeconds=60), parsed(stabilizationWindowSeconds=1800)
    assert (short.tuning.look_back_seconds, short.tuning.settle_seconds) == (60, 60)
    assert long.tuning.look_back_seconds == 1800
    manifest = applied(look(scaled(behavior=long.behavior)), KIND)
    assert manifest is not None
    assert manifest["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 120


def test_without_autoscaling_there_is_none_and_status_says_nothing() -> None:
    for about in (resource(), scaled(enabled=False)):
        outcome = look(about)
        assert applied(outcome, KIND) is None
        assert "autoscaling" not in outcome.status
        assert "Autoscaling" not in {c["type"] for c in outcome.status["conditions"]}


def test_an_hpa_that_stands_is_applied_once_and_deleted_when_scaling_is_turned_off() -> None:
    about, observed = settle(scaled())
    assert applied(look(about, observed), KIND) is None
    assert look(about, observed).delete == ()
    outcome = look(scaled(enabled=False), observed)
    assert [live["kind"] for live in outcome.delete] == [KIND, "PodDisruptionBudget"]
    going = {**dict(observed.autoscaler or {})}
    going["metadata"] = {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    again = look(
        scaled(enabled=False), dataclasses.replace(observed, autoscaler=going, budget=None)
    )
    assert again.delete == ()


def test_scaling_never_restarts_a_pod() -> None:
    about, observed = settle(resource())
    outcome = look(
        {**about, "spec": {**about["spec"], "autoscaling": {"maxReplicas": 3}}}, observed
    )
    assert [manifest["kind"] for manifest in outcome.apply] == [KIND, "PodDisruptionBudget"]
    assert carry_out(outcome, observed).deployment == observed.deployment


def test_somebody_elses_hpa_of_that_name_is_neither_overwritten_nor_deleted_but_told() -> None:
    foreign = {"kind": KIND, "metadata": {"name": "chat", "uid": "u"}, "spec": {}}
    observed = dataclasses.replace(seen(VIEW), autoscaler=foreign)
    outcome = look(scaled(), observed)
    assert applied(outcome, KIND) is None
    assert outcome.delete == ()
    state, reason, message = condition(outcome, "Autoscaling")
    assert (state, reason) == ("False", "NameTaken")
    assert "HorizontalPodAutoscaler chat" in message
    assert condition(outcome, "Degraded")[0] == "False"
    assert look(resource(), observed).delete == ()


def test_status_tells_what_is_wanted_and_why() -> None:
    outcome = look(scaled(), seen(VIEW))
    assert outcome.status["autoscaling"] == {
        "minReplicas": 1,
        "maxReplicas": 5,
        "wantedReplicas": 2,
        "reason": "BlocksNeeded",
        "freeRatio": 0.31,
        "coldStartSeconds": [41, 40],
    }
    assert condition(outcome, "Autoscaling")[:2] == ("True", "Following")
    [version] = yaml.safe_load(Path(CRD).read_text("utf-8"))["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert list(undeclared(dict(outcome.status), schema, "status")) == []


@pytest.mark.parametrize(
    ("view", "state", "reason", "words"),
    [
        (ScalingView(), "Unknown", "NothingKnown", "the replicas stay at 1"),
        (ScalingView(9, "BlocksNeeded", 0.0), "True", "AtMaximum", "wants 9 replicas"),
        (
            dataclasses.replace(VIEW, problem=Problem("MetricsApiTaken", "KEDA has it")),
            "False",
            "MetricsApiTaken",
            "KEDA has it",
        ),
    ],
)
def test_the_condition_says_why_replicas_do_not_follow(
    view: ScalingView, state: str, reason: str, words: str
) -> None:
    found = condition(look(scaled(), seen(view)), "Autoscaling")
    assert found[:2] == (state, reason)
    assert words in found[2]


def test_zero_replicas_are_the_users_and_the_way_out_is_told() -> None:
    about = scaled()
    about["spec"]["replicas"] = 0
    state, reason, message = condition(look(about, seen(VIEW)), "Autoscaling")
    assert (state, reason) == ("False", "ScaledToZero")
    assert "set it to 1" in message


def test_an_operator_that_has_not_looked_yet_leaves_what_its_predecessor_wrote() -> None:
    before = look(scaled(), seen(VIEW))
    about = {**scaled(), "status": dict(before.status)}
    outcome = look(about, seen(None))
    assert outcome.status == before.status
    fresh = look(scaled(), seen(None))
    assert condition(fresh, "Autoscaling")[:2] == ("Unknown", "Starting")
    assert "autoscaling" not in fresh.status


def test_another_wish_is_one_event_and_a_lasting_one_none() -> None:
    before = look(scaled(), seen(VIEW))
    about = {**scaled(), "status": dict(before.status)}
    assert news(look(about, seen(VIEW))) == []
    [notice] = news(look(about, seen(dataclasses.replace(VIEW, replicas=4))))
    assert notice.reason == "ReplicasWanted"
    assert notice.message.startswith("4 replicas instead of 2: the load needs more KV blocks")
    taken = dataclasses.replace(VIEW, problem=Problem("MetricsApiTaken", "KEDA has it"))
    [notice] = news(look(about, seen(taken)))
    assert (notice.is_warning, notice.reason) == (True, "MetricsApiTaken")


@pytest.mark.parametrize(
    ("autoscaling", "words"),
    [
        ({"enabled": True}, "autoscaling.maxReplicas: say how many"),
        ({"maxReplicas": 0}, "autoscaling.maxReplicas: 0 must be"),
        ({"maxReplicas": 2, "minReplicas": 3}, "minReplicas: 3 is above"),
        ({"maxReplicas": 2, "targetFreeRatio": 0.9}, "targetFreeRatio: 0.9 must be a share"),
        ({"maxReplicas": 2, "behavior": "fast"}, "behavior: must be an object"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(autoscaling: Json, words: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.autoscaling") as error:
        parse_spec({**resource()["spec"], "autoscaling": autoscaling})
    assert words in str(error.value)
