"""PodDisruptionBudget and NetworkPolicy: where they are made, what they say, when they go."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.errors import InvalidSpecError
from qwen_operator.observed import Observed
from qwen_operator.pod_guards import selects
from qwen_operator.spec import parse_spec
from tests.unit.operator_states import Json, applied, carry_out, look, resource, settle

OPERATOR = {"podSelector": {"matchLabels": {"app": "operator"}}, "namespaceSelector": {}}
WITH_PEERS = Observed(engine_peers=(OPERATOR,))
TEAM = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
LABELS = {"app": "engine", "tier": "gold"}


def about(**fields: Any) -> Json:
    """The QwenDeployment `chat` with more in its spec."""
    found = resource()
    found["spec"].update(fields)
    return found


def policy(outcome_of: Json, observed: Observed = WITH_PEERS) -> Json:
    found = applied(look(outcome_of, observed), "NetworkPolicy")
    assert found is not None
    return found


def budget_of(selector: Json | None, **labels: str) -> Json:
    """Somebody's PodDisruptionBudget."""
    metadata = {"name": "mine", "namespace": "ns", "uid": "other", "labels": labels}
    return {"metadata": metadata, "spec": {"minAvailable": 1, "selector": selector}}


@pytest.mark.parametrize(
    ("fields", "is_made"),
    [
        ({}, False),
        ({"replicas": 0}, False),
        ({"replicas": 2}, True),
        ({"replicas": 2, "podDisruptionBudget": {"enabled": False}}, False),
        ({"autoscaling": {"maxReplicas": 1}}, False),
        ({"autoscaling": {"maxReplicas": 2}}, True),
        ({"autoscaling": {"maxReplicas": 2, "enabled": False}}, False),
    ],
)
def test_a_budget_is_made_where_there_may_be_two_pods(fields: Json, is_made: bool) -> None:
    assert (applied(look(about(**fields)), "PodDisruptionBudget") is not None) is is_made


def test_a_budget_lets_one_pod_go_at_any_time_and_sick_ones_always() -> None:
    budget = applied(look(about(replicas=2)), "PodDisruptionBudget")
    assert budget is not None
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": {"qwenoperator.io/deployment": "chat"}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    assert budget["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_a_budget_goes_with_the_second_replica_and_is_applied_once() -> None:
    two, live = settle(about(replicas=2))
    assert not look(two, live).apply
    assert look(two, live).delete == ()
    gone = look({**two, "spec": {**two["spec"], "replicas": 1}}, live).delete
    assert [child["kind"] for child in gone] == ["PodDisruptionBudget"]


def test_beside_somebody_elses_budget_for_these_pods_there_is_none_of_ours() -> None:
    two, live = settle(about(replicas=2))
    others = dataclasses.replace(
        live, other_budgets=(budget_of({"matchLabels": {"app.kubernetes.io/instance": "chat"}}),)
    )
    assert [child["kind"] for child in look(two, others).delete] == ["PodDisruptionBudget"]
    first = Observed(other_budgets=others.other_budgets)
    assert applied(look(about(replicas=2), first), "PodDisruptionBudget") is None
    of_other_pods = (budget_of({"matchLabels": {"app.kubernetes.io/instance": "web"}}),)
    there = Observed(other_budgets=of_other_pods)
    assert applied(look(about(replicas=2), there), "PodDisruptionBudget") is not None


def test_a_budget_of_this_name_that_is_somebody_elses_is_neither_changed_nor_deleted() -> None:
    foreign = Observed(budget=budget_of({"matchLabels": {"app": "web"}}))
    assert applied(look(about(replicas=2), foreign), "PodDisruptionBudget") is None
    assert look(about(replicas=1), foreign).delete == ()


@pytest.mark.parametrize(
    ("selector", "is_about"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "engine"}}, True),
        ({"matchLabels": {"app": "engine", "tier": "lead"}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["lead"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["gold"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "none", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_whom_a_budget_is_about_is_read_as_kubernetes_reads_it(
    selector: Json | None, is_about: bool
) -> None:
    assert selects(budget_of(selector), LABELS) is is_about


def test_without_the_field_no_policy_is_made_and_all_may_connect() -> None:
    assert applied(look(about(), WITH_PEERS), "NetworkPolicy") is None
    assert (
        applied(look(about(networkPolicy={"enabled": False}), WITH_PEERS), "NetworkPolicy") is None
    )


def test_a_policy_admits_the_own_namespace_and_the_operator_to_the_engines_port() -> None:
    found = policy(about(networkPolicy={}))
    assert found["spec"] == {
        "podSelector": {"matchLabels": {"qwenoperator.io/deployment": "chat"}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": {}}, OPERATOR], "ports": [{"port": 8000, "protocol": "TCP"}]}
        ],
    }
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_named_peers_take_the_namespaces_place_and_the_operator_stays() -> None:
    [rule] = policy(about(networkPolicy={"from": [TEAM]}))["spec"]["ingress"]
    assert rule["from"] == [TEAM, OPERATOR]


def test_the_policy_is_there_before_the_pods_and_changes_nothing_of_theirs() -> None:
    open_, live = settle(about(), WITH_PEERS)
    first = look(about(networkPolicy={}), WITH_PEERS).apply
    assert [m["kind"] for m in first].index("NetworkPolicy") == 0
    closed = look({**open_, "spec": about(networkPolicy={})["spec"]}, live)
    assert [manifest["kind"] for manifest in closed.apply] == ["NetworkPolicy"]
    after = carry_out(closed, live)
    assert not look({**open_, "spec": about(networkPolicy={})["spec"]}, after).apply
    assert [child["kind"] for child in look(open_, after).delete] == ["NetworkPolicy"]


def test_a_policy_of_this_name_that_is_somebody_elses_is_told_and_nothing_is_served_open() -> None:
    foreign = dataclasses.replace(
        WITH_PEERS, network_policy={"metadata": {"name": "chat", "namespace": "ns", "uid": "o"}}
    )
    outcome = look(about(networkPolicy={}), foreign)
    assert outcome.apply == ()
    degraded = next(c for c in outcome.status["conditions"] if c["type"] == "Degraded")
    assert (degraded["reason"], "NetworkPolicy chat" in degraded["message"]) == ("NameTaken", True)
    assert look(about(), foreign).apply, "it is nobody's business where none is asked for"


@pytest.mark.parametrize(
    "peers", [[], {}, "all", [{}], [{"podSelektor": {}}], ["everybody"], [None]]
)
def test_peers_that_would_mean_everybody_or_nothing_are_refused(peers: Any) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.networkPolicy\.from"):
        parse_spec(about(networkPolicy={"from": peers})["spec"])
