"""reconcile: KEDA's ScaledObject, a change of provider, and the steps to and from zero."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_operator.activation import WAITING_ANNOTATION, build_slice
from qwen_operator.errors import InvalidSpecError
from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome, news
from qwen_operator.scaling_view import ScalingView
from qwen_operator.spec import parse_spec
from qwen_operator.spec_autoscaling import DEFAULT_IDLE_SECONDS, Hold, Provider
from tests.unit.operator_states import (
    NOW,
    Json,
    applied,
    condition,
    look,
    resource,
    rolled_out,
    settle,
)
from tests.unit.test_reconcile_autoscaling import scaled
from tests.unit.test_status_schema import CRD

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
URL = "http://figures.place.svc:80/v1/namespaces/ns/qwendeployments/chat"
VIEW = ScalingView(1, "Enough", 0.9, (41.0,))
WITH_KEDA = Observed(is_keda_there=True, figures_url=URL)


def activation(about: Json, *, waiting_at: str | None = None) -> Json:
    return build_slice(
        about["metadata"], address="198.19.0.9", port=4000, is_routed=True, waiting_at=waiting_at
    )


def served(about: Json, view: ScalingView | None = VIEW, **there: Any) -> Observed:
    """Everything applied, one pod ready, something decided, and what else there is."""
    before = dataclasses.replace(Observed(), **there)
    observed = settle(about, before)[1]
    ready = rolled_out(observed, ready=about["spec"]["replicas"])
    kept = {
        field.name: getattr(observed, field.name)
        for field in dataclasses.fields(Observed)
        if field.name not in ("deployment", "pods")
    }
    return dataclasses.replace(ready, **{**kept, "scaling": view})


def at(about: Json, replicas: int) -> Json:
    return {**about, "spec": {**about["spec"], "replicas": replicas}}


def test_keda_is_told_where_to_ask_and_no_hpa_of_ours_is_made() -> None:
    outcome = look(scaled(provider="KEDA", maxReplicas=4), WITH_KEDA)
    assert applied(outcome, HPA) is None
    manifest = applied(outcome, SCALED_OBJECT)
    assert manifest is not None
    assert manifest["apiVersion"] == "keda.sh/v1alpha1"
    [owner] = manifest["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["blockOwnerDeletion"]) == ("uid-1", False)
    spec = manifest["spec"]
    assert spec["scaleTargetRef"]["kind"] == "QwenDeployment"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 4)
    assert spec["cooldownPeriod"] == spec["initialCooldownPeriod"] == DEFAULT_IDLE_SECONDS
    size, activity = (trigger["metadata"] for trigger in spec["triggers"])
    assert {size["url"], activity["url"]} == {URL}
    assert (size["valueLocation"], activity["valueLocation"]) == ("replicas", "busy")
    # the number alone must keep nothing up, the activity alone must not set the number
    assert float(size["activationTargetValue"]) > 10_000
    assert activity["activationTargetValue"] == "0"


def test_keda_starts_nothing_at_zero_that_an_activator_has_just_not_seen_yet() -> None:
    about = scaled(provider="KEDA", minReplicas=0)
    least = {}
    for replicas in (0, 1):
        manifest = applied(look(at(about, replicas), WITH_KEDA), SCALED_OBJECT)
        assert manifest is not None
        least[replicas] = manifest["spec"]["minReplicaCount"]
    assert least == {0: 0, 1: 1}


def test_both_providers_move_equally_fast() -> None:
    given = {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 7}}}
    hpa = applied(look(scaled(**given)), HPA)
    keda = applied(look(scaled(provider="KEDA", **given), WITH_KEDA), SCALED_OBJECT)
    assert hpa is not None
    assert keda is not None
    advanced = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    assert advanced["behavior"] == hpa["spec"]["behavior"]


@pytest.mark.parametrize(
    ("there", "reason", "words"),
    [
        (Observed(figures_url=URL), "KedaMissing", "install KEDA"),
        (Observed(is_keda_there=True), "FiguresOff", "figures.enabled"),
        (
            dataclasses.replace(
                WITH_KEDA, scaled_object={"kind": SCALED_OBJECT, "metadata": {"name": "chat"}}
            ),
            "NameTaken",
            "ScaledObject chat exists",
        ),
    ],
)
def test_what_keeps_keda_from_scaling_is_told_with_the_way_out(
    there: Observed, reason: str, words: str
) -> None:
    outcome = look(scaled(provider="KEDA"), there)
    assert applied(outcome, SCALED_OBJECT) is None
    assert applied(outcome, HPA) is None
    state, why, message = condition(outcome, "Autoscaling")
    assert (state, why) == ("False", reason)
    assert words in message


def test_what_keda_says_of_its_object_is_told_and_looked_at_again() -> None:
    about = scaled(provider="KEDA")
    observed = served(about, is_keda_there=True, figures_url=URL)
    assert condition(look(about, observed), "Autoscaling")[1] == "Following"
    said = [{"type": "Ready", "status": "False", "message": "ScaledObject doesn't\nhave a target"}]
    broken = {**dict(observed.scaled_object or {}), "status": {"conditions": said}}
    outcome = look(about, dataclasses.replace(observed, scaled_object=broken))
    state, reason, message = condition(outcome, "Autoscaling")
    assert (state, reason) == ("False", "KedaNotReady")
    assert "ScaledObject doesn't have a target" in message
    assert outcome.look_again_seconds > 0


def test_a_change_of_provider_takes_the_others_object_away() -> None:
    built_in = served(scaled(), is_keda_there=True, figures_url=URL)
    to_keda = look(scaled(provider="KEDA"), built_in)
    assert [live["kind"] for live in to_keda.delete] == [HPA]
    assert [manifest["kind"] for manifest in to_keda.apply] == [SCALED_OBJECT]
    keda = served(scaled(provider="KEDA"), is_keda_there=True, figures_url=URL)
    back = look(scaled(), keda)
    assert [live["kind"] for live in back.delete] == [SCALED_OBJECT]
    assert [manifest["kind"] for manifest in back.apply] == [HPA]
    for off in (scaled(provider="None"), scaled(enabled=False), resource()):
        gone = [live["kind"] for live in look(off, keda).delete]
        assert [kind for kind in gone if kind != "PodDisruptionBudget"] == [SCALED_OBJECT]


def test_without_a_provider_the_figures_are_told_and_nothing_is_made() -> None:
    about = scaled(provider="None")
    outcome = look(about, served(about))
    assert outcome.apply == ()
    assert outcome.status["autoscaling"]["wantedReplicas"] == 1
    assert condition(outcome, "Autoscaling")[:2] == ("True", "Following")


def test_an_hpa_never_has_fewer_than_one_and_keda_zero_only_where_requests_are_held() -> None:
    hpa = applied(look(scaled(minReplicas=0)), HPA)
    assert hpa is not None
    assert hpa["spec"]["minReplicas"] == 1
    about = scaled(minReplicas=0, provider="KEDA", idleSeconds=40)
    without = applied(look(about, WITH_KEDA), SCALED_OBJECT)
    held = dataclasses.replace(WITH_KEDA, activation=activation(about))
    with_it = applied(look(about, held), SCALED_OBJECT)
    assert without is not None
    assert with_it is not None
    assert without["spec"]["minReplicaCount"] == 1
    assert (with_it["spec"]["minReplicaCount"], with_it["spec"]["cooldownPeriod"]) == (0, 40)


def outcome_of(replicas: int, *, idle: bool = False, waiting_at: str | None = None) -> Outcome:
    """Look at one with the built-in provider that may go to zero."""
    about = at(scaled(minReplicas=0), replicas)
    view = dataclasses.replace(VIEW, is_idle=idle)
    observed = served(about, view, activation=activation(about, waiting_at=waiting_at))
    return look(about, observed)


def test_an_idle_one_goes_to_zero_and_a_waiting_request_brings_it_back() -> None:
    assert outcome_of(1).scale is None
    down = outcome_of(3, idle=True)
    assert down.scale == 0
    assert "ScaledToZero" in {note.reason for note in news(down)}
    assert outcome_of(0).scale is None
    up = outcome_of(0, waiting_at=NOW)
    assert up.scale == 1
    assert "Activated" in {note.reason for note in news(up)}
    assert outcome_of(1, idle=True, waiting_at=NOW).scale is None
    asleep = condition(outcome_of(0), "Autoscaling")
    assert asleep[:2] == ("True", "ScaledToZero")
    assert "next request starts a pod" in asleep[2]


def test_an_old_word_of_waiting_requests_is_not_believed() -> None:
    assert outcome_of(0, waiting_at="2025-12-31T23:59:00Z").scale is None
    assert outcome_of(0, waiting_at="sometime").scale is None


@pytest.mark.parametrize(
    "autoscaling", [{"provider": "KEDA"}, {"provider": "None"}, {"minReplicas": 1}]
)
def test_the_operator_sets_no_number_where_it_is_not_its_to_set(autoscaling: Json) -> None:
    about = scaled(**{"minReplicas": 0, **autoscaling})
    for replicas in (0, 2):
        view = dataclasses.replace(VIEW, is_idle=True)
        there = {"is_keda_there": True, "figures_url": URL}
        slice_ = activation(about, waiting_at=NOW if replicas == 0 else None)
        observed = served(at(about, replicas), view, activation=slice_, **there)
        assert look(at(about, replicas), observed).scale is None


def test_without_an_activator_the_last_replica_stays_and_why_is_told() -> None:
    about = scaled(minReplicas=0)
    observed = served(about, dataclasses.replace(VIEW, is_idle=True))
    outcome = look(about, observed)
    assert outcome.scale is None
    state, reason, message = condition(outcome, "Autoscaling")
    assert (state, reason) == ("True", "NoActivator")
    assert "activator.enabled" in message
    zero = look(at(about, 0), served(at(about, 0)))
    assert condition(zero, "Autoscaling")[:2] == ("False", "NoActivator")


def test_somebody_elses_endpoint_slice_wakes_nobody() -> None:
    about = at(scaled(minReplicas=0), 0)
    foreign = activation(about, waiting_at=NOW)
    foreign["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert look(about, served(about, activation=foreign)).scale is None
    assert foreign["metadata"]["annotations"][WAITING_ANNOTATION] == NOW


@pytest.mark.parametrize(
    ("autoscaling", "words"),
    [
        ({"provider": "Knative"}, "provider: 'Knative' must be one of BuiltIn, KEDA, None"),
        ({"minReplicas": -1}, "minReplicas: -1 must be"),
        ({"idleSeconds": 0}, "idleSeconds: 0 must be"),
        ({"hold": {"requests": "many"}}, "hold.requests: 'many' must be"),
        ({"hold": 5}, "hold: must be an object"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(autoscaling: Json, words: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.autoscaling") as error:
        parse_spec({**resource()["spec"], "autoscaling": {"maxReplicas": 2, **autoscaling}})
    assert words in str(error.value)


def test_the_crd_tells_the_defaults_that_hold() -> None:
    [version] = yaml.safe_load(Path(CRD).read_text("utf-8"))["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields = spec["autoscaling"]["properties"]
    assert fields["provider"]["enum"] == list(Provider)
    assert fields["idleSeconds"]["default"] == DEFAULT_IDLE_SECONDS
    hold = {name: about["default"] for name, about in fields["hold"]["properties"].items()}
    assert hold == dataclasses.asdict(Hold())
