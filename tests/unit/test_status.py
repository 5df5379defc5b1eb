"""status: conditions, their times, blocks, and the events that come of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.conditions import Loading
from qwen_operator.events import build_events
from qwen_operator.reconcile import news
from qwen_operator.status import Reading
from tests.unit.operator_states import (
    LATER,
    NOW,
    condition,
    look,
    pod,
    resource,
    rolled_out,
    seen,
    settle,
)

Json = dict[str, Any]


def waiting(reason: str, message: str = "", **more: Any) -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def died(reason: str = "Error", code: int = 1, message: str = "") -> Json:
    return {"terminated": {"reason": reason, "exitCode": code, "message": message}}


CASES = [
    pytest.param(
        pod(
            "a",
            container={},
            phase="Pending",
            containerStatuses=[],
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    "lastTransitionTime": "2025-12-31T23:59:00Z",
                }
            ],
        ),
        "Unschedulable",
        "Insufficient nvidia.com/gpu",
        id="the scheduler's sentence is passed on",
    ),
    pytest.param(
        pod("a", container=waiting("ErrImagePull", "manifest unknown")),
        "ImagePull",
        "manifest unknown",
        id="an image that cannot be pulled",
    ),
    pytest.param(
        pod("a", container=waiting("ErrImageNeverPull")),
        "ImagePull",
        "ErrImageNeverPull",
        id="an image that may not be pulled",
    ),
    pytest.param(
        pod("a", container=waiting("CreateContainerConfigError", 'secret "hf" not found')),
        "ContainerConfig",
        'secret "hf" not found',
        id="a Secret that is not there",
    ),
    pytest.param(
        pod(
            "a",
            container=waiting(
                "CrashLoopBackOff",
                "back-off 20s restarting failed container",
                restartCount=3,
                lastState=died(message="Traceback…\nModelError: no such folder\n\n"),
            ),
        ),
        "CrashLoop",
        "exit code 1 (3 restarts): ModelError: no such folder",
        id="the last words of an engine that keeps dying",
    ),
    pytest.param(
        pod("a", container={"restartCount": 2, "lastState": died(code=137)}),
        "CrashLoop",
        "kubectl logs --previous",
        id="an engine that dies without a word, while it starts once more",
    ),
    pytest.param(
        pod("a", container={"state": died("OOMKilled", 137), "restartCount": 0}),
        "OOMKilled",
        "spec.engine.resources.limits.memory",
        id="an engine killed for its memory",
    ),
    pytest.param(
        pod("a", phase="Failed", reason="Evicted", message="low on ephemeral-storage"),
        "Evicted",
        "low on ephemeral-storage",
        id="an evicted pod",
    ),
]


@pytest.mark.parametrize(("a_pod", "reason", "words"), CASES)
def test_what_stops_a_pod_becomes_the_reason_and_the_sentence(
    a_pod: Json, reason: str, words: str
) -> None:
    about, observed = seen(a_pod)
    outcome = look(about, observed)
    for kind, status in (("Available", "False"), ("Degraded", "True")):
        state, why, message = condition(outcome, kind)
        assert (state, why) == (status, reason)
        assert words in message
        assert "pod a" in message
    assert condition(outcome, "Progressing")[:2] == ("False", "Blocked")
    assert [(n.is_warning, n.reason) for n in news(outcome)] == [(True, reason)]


@pytest.mark.parametrize(
    ("a_pod", "readings", "reason", "words"),
    [
        (pod("a", container=waiting("ContainerCreating")), {}, "Starting", "on node node-1"),
        (pod("a"), {}, "Starting", "the engine in pod a starts"),
        (
            pod("a"),
            {"a": Reading(loading=Loading("loading", 62))},
            "Loading",
            "pod a loads the model: 62% done",
        ),
        (
            pod("a"),
            {"a": Reading(loading=Loading("downloading"))},
            "Downloading",
            "pod a downloads the model",
        ),
        (pod("a", container={"restartCount": 1, "lastState": died()}), {}, "Starting", "starts"),
    ],
)
def test_what_only_takes_time_is_no_fault(
    a_pod: Json, readings: dict[str, Reading], reason: str, words: str
) -> None:
    about, observed = seen(a_pod)
    outcome = look(about, dataclasses.replace(observed, readings=readings))
    assert condition(outcome, "Available")[:2] == ("False", reason)
    assert words in condition(outcome, "Available")[2]
    assert condition(outcome, "Progressing")[:2] == ("True", "RollingOut")
    assert condition(outcome, "Degraded")[0] == "False"
    assert news(outcome) == []


def test_a_ready_pod_makes_it_available_once_and_says_where() -> None:
    about, observed = seen(pod("a", ready=True), ready=1)
    outcome = look(about, observed)
    assert condition(outcome, "Available") == (
        "True",
        "Serving",
        "1 of 1 pods answer at http://chat.ns.svc:8000/v1",
    )
    assert condition(outcome, "Progressing")[:2] == ("False", "Settled")
    assert outcome.status["ready"] == "1/1"
    assert outcome.status["selector"] == "qwenoperator.io/deployment=chat"
    assert [n.reason for n in news(outcome)] == ["Serving"]
    again = look({**about, "status": dict(outcome.status)}, observed)
    assert (again.status, news(again)) == (outcome.status, [])


def test_one_pod_that_fails_degrades_what_the_other_still_serves() -> None:
    broken = pod("b", container=waiting("ImagePullBackOff", "not found"))
    about, observed = seen(pod("a", ready=True), broken, ready=1)
    about["spec"]["replicas"] = 2
    outcome = look(about, observed)
    assert condition(outcome, "Available")[0] == "True"
    assert outcome.status["ready"] == "1/2"
    assert condition(outcome, "Degraded")[:2] == ("True", "ImagePull")


def unschedulable(message: str, since: str) -> Json:
    turned = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    turned |= {"message": message, "lastTransitionTime": since}
    return pod("a", phase="Pending", containerStatuses=[], conditions=[turned])


def test_a_pod_without_a_node_is_told_at_once_and_alarms_only_after_a_while() -> None:
    """K8-031: the scheduler's own words."""
    about, observed = seen(unschedulable("no node fits.", since=NOW))
    early = look(about, observed, now="2026-01-01T00:00:05Z")
    assert condition(early, "Available")[:2] == ("False", "Unschedulable")
    assert condition(early, "Progressing")[:2] == ("True", "RollingOut")
    assert condition(early, "Degraded")[0] == "False"
    assert (news(early), early.look_again_seconds) == ([], 10)

    late = look({**about, "status": dict(early.status)}, observed, now="2026-01-01T00:00:15Z")
    assert condition(late, "Degraded")[:2] == ("True", "Unschedulable")
    assert [n.reason for n in news(late)] == ["Unschedulable"]
    assert late.look_again_seconds == 0


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            "0/1 nodes are available: 1 Insufficient cpu.",
        ),
        (
            '0/1 nodes are available: persistentvolumeclaim "m" not found. not found',
            '0/1 nodes are available: persistentvolumeclaim "m" not found.',
        ),
        (
            "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available.",
            "0/3 nodes are available: 3 Insufficient memory.",
        ),
    ],
)
def test_the_schedulers_postscripts_are_left_out(said: str, told: str) -> None:
    about, observed = seen(unschedulable(said, since=NOW))
    assert condition(look(about, observed), "Available")[2] == f"pod a finds no node: {told}"


def test_zero_replicas_are_a_wish_not_a_fault() -> None:
    about, observed = settle({**resource(), "spec": {**resource()["spec"], "replicas": 0}})
    outcome = look(about, rolled_out(observed, ready=0))
    assert condition(outcome, "Available")[:2] == ("False", "ScaledToZero")
    assert condition(outcome, "Degraded")[0] == "False"
    assert outcome.status["ready"] == "0/0"


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        (
            {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"},
            "PodsRefused",
            "violates PodSecurity",
        ),
        (
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            "Stalled",
            "in time",
        ),
    ],
)
def test_a_deployment_that_cannot_make_its_pods_says_why(
    fault: Json, reason: str, words: str
) -> None:
    about, observed = seen()
    assert observed.deployment is not None
    observed.deployment["status"]["conditions"] = [fault]
    outcome = look(about, observed)
    assert condition(outcome, "Degraded")[1] == reason
    assert words in condition(outcome, "Degraded")[2]


def test_the_time_of_a_condition_moves_only_when_it_flips() -> None:
    about, observed = seen(pod("a"))
    loading = look(about, observed, now=NOW)
    serving = rolled_out(observed, ready=1)
    ready = look({**about, "status": dict(loading.status)}, serving, now=LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in ready.status["conditions"]}
    assert times == {
        "Planned": NOW,
        "Available": LATER,
        "Progressing": LATER,
        "Degraded": NOW,
        "PlanAccurate": NOW,
    }


def test_pods_on_their_way_out_say_nothing() -> None:
    leaving = pod("a", container=waiting("CrashLoopBackOff", lastState=died()))
    leaving["metadata"]["deletionTimestamp"] = NOW
    about, observed = seen(leaving)
    assert condition(look(about, observed), "Degraded")[0] == "False"


def test_the_same_notice_is_the_same_event_object() -> None:
    about, observed = seen(pod("a", container=waiting("ErrImagePull", "x" * 5000)))
    notes = news(look(about, observed))
    first, again = (build_events(notes, about, t, reporter="op")[0] for t in (NOW, LATER))
    assert first["metadata"]["name"] == again["metadata"]["name"]
    assert len(first["message"]) <= 1024
    assert first["involvedObject"]["uid"] == "uid-1"
    assert first["metadata"]["name"].startswith("chat.")
