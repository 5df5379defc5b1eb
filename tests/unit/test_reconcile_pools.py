"""reconcile: several kinds of GPU in one cluster, and which of them is planned for."""

from __future__ import annotations

import dataclasses

import pytest

from qwen_operator.node_facts import NodeFacts
from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome
from tests.unit.operator_states import (
    applied,
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
    with_memory,
)


def gpu(name: str, product: str, mib: int, count: int = 1) -> NodeFacts:
    """A node with labelled GPUs."""
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(mib)}
    return NodeFacts(name, labels, {"nvidia.com/gpu": count})


T4 = gpu("t4-0", "Tesla-T4", 15360)
L40S = gpu("l40s-0", "NVIDIA-L40S", 46068, count=4)


def planned(*nodes: NodeFacts, **spec: object) -> Outcome:
    return look(resource(gpu_spec(**spec)), Observed(nodes=nodes))


def product_of(outcome: Outcome) -> str:
    found: str = outcome.status["plan"]["device"]["product"]
    return found


def test_each_kind_has_its_own_plan_in_status_and_one_is_chosen() -> None:
    outcome = planned(h100(), L40S, T4, l4(), l4("l4-1"))
    rows = outcome.status["plan"]["pools"]
    assert [(row["product"], row["gpus"], row["fits"], row["chosen"]) for row in rows] == [
        ("Tesla-T4", 1, False, False),
        ("NVIDIA-L4", 2, True, True),
        ("NVIDIA-L40S", 4, True, False),
        ("NVIDIA-H100-80GB-HBM3", 8, True, False),
    ]
    assert "does not fit on Tesla-T4" in rows[0]["message"]
    tokens = [row["tokens"] for row in rows[1:]]
    assert tokens == sorted(tokens)
    message = condition(outcome, "Planned")[2]
    assert "too small: Tesla-T4" in message
    selector = template_of(outcome)["spec"]["nodeSelector"]
    assert selector == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_the_order_in_which_nodes_are_listed_decides_nothing() -> None:
    nodes = [h100(), L40S, T4, l4(), l4("l4-1")]
    plans = [planned(*nodes[i:], *nodes[:i]).status["plan"] for i in range(len(nodes))]
    assert all(plan == plans[0] for plan in plans)


def test_a_demanded_context_that_the_smallest_cannot_hold_takes_a_larger_one() -> None:
    outcome = planned(l4(), L40S, context={"maxModelLen": 32768})
    assert product_of(outcome) == "NVIDIA-L40S"
    assert flag(outcome, "--max-model-len") == "32768"


def test_a_card_that_leaves_hardly_any_context_is_passed_over_for_a_larger_one() -> None:
    sizes = (gpu("tight-0", "X-1", mib) for mib in range(16000, 24000, 100))
    tight = next(node for node in sizes if condition(planned(node), "Planned")[0] == "True")
    assert int(flag(planned(tight), "--max-model-len")) < 8192
    outcome = planned(tight, L40S)
    assert product_of(outcome) == "NVIDIA-L40S"
    assert "smaller ones leave less context" in condition(outcome, "Planned")[2]


def test_where_none_is_large_enough_all_are_named_and_the_largest_explained() -> None:
    outcome = planned(T4, l4(), model={"id": "Qwen/Qwen3-32B"})
    status, reason, message = condition(outcome, "Planned")
    assert (status, reason) == ("False", "DoesNotFit")
    assert "Tesla-T4 (15,360 MiB), NVIDIA-L4 (23,034 MiB)" in message
    assert "does not fit on NVIDIA-L4" in message
    assert "Use a GPU with at least" in message
    assert outcome.apply == ()


def test_a_demand_that_no_memory_meets_is_refused_by_its_field() -> None:
    outcome = planned(T4, l4(), context={"maxModelLen": 16_000_000})
    assert condition(outcome, "Planned")[1] == "InvalidSetting"
    assert "spec.context.maxModelLen" in condition(outcome, "Planned")[2]


def test_a_data_type_that_a_kind_lacks_only_rules_out_that_kind() -> None:
    small = {"model": {"id": "Qwen/Qwen3-0.6B"}}
    outcome = planned(T4, l4(), engine={"overrides": {"dtype": "bfloat16"}}, **small)
    assert product_of(outcome) == "NVIDIA-L4"
    assert "no bfloat16" in outcome.status["plan"]["pools"][0]["message"]


def test_memory_alone_chooses_among_kinds_that_have_about_as_much() -> None:
    outcome = planned(T4, l4(), L40S, gpu={"memoryMiB": 49152})
    assert product_of(outcome) == "NVIDIA-L40S"
    assert outcome.status["plan"]["device"]["memoryMiB"] == 46068
    assert "spec.gpu.memoryMiB=49152 is more than" in condition(outcome, "Planned")[2]


def test_memory_that_no_node_has_is_planned_for_nodes_to_come_and_said() -> None:
    outcome = planned(l4(), gpu={"memoryMiB": 90000})
    assert outcome.status["plan"]["device"]["memoryMiB"] == 90000
    assert "no node's GPU has as much" in condition(outcome, "Planned")[2]
    assert "nodeSelector" not in template_of(outcome)["spec"]


def with_label(node: NodeFacts, key: str, value: str) -> NodeFacts:
    return dataclasses.replace(node, labels={**node.labels, key: value})


def test_only_nodes_that_the_users_selector_matches_are_planned_for() -> None:
    nodes = (with_label(l4(), "team", "a"), with_label(L40S, "team", "b"))
    outcome = planned(*nodes, template={"nodeSelector": {"team": "b"}})
    assert product_of(outcome) == "NVIDIA-L40S"
    assert template_of(outcome)["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-L40S",
        "team": "b",
    }


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (l4(), "node l4-0 lacks label team"),
        (with_label(l4(), "team", "b"), "node l4-0 has label team=b"),
    ],
)
def test_a_label_that_the_selected_node_lacks_is_named_and_waited_for(
    node: NodeFacts, words: str
) -> None:
    """K8-009: not refused for good."""
    about = resource(gpu_spec(template={"nodeSelector": {"team": "a"}}))
    message = condition(look(about, Observed(nodes=(node,))), "Planned")[2]
    assert words in message
    assert "team=a" in message
    found = look(about, Observed(nodes=(with_label(node, "team", "a"),)))
    assert condition(found, "Planned")[1] == "PlanFits"


def test_host_memory_of_another_kind_does_not_count() -> None:
    outcome = planned(with_memory(l4(), 64), with_memory(T4, 4))
    assert product_of(outcome) == "NVIDIA-L4"
    assert flag(outcome, "--swap-space") == "4"


def test_a_better_kind_that_comes_later_restarts_no_pod_that_serves() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(L40S,)))
    serving = rolled_out(observed, ready=1)
    outcome = look(about, dataclasses.replace(serving, nodes=(l4(), L40S)))
    assert applied(outcome, "Deployment") is None


def test_a_kind_known_by_its_clouds_label_is_kept_while_such_a_node_is_there() -> None:
    gke = NodeFacts("a", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {"nvidia.com/gpu": 1})
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(gke,)))
    assert template_of(look(about, Observed(nodes=(gke,))))["spec"]["nodeSelector"] == gke.labels
    waiting = dataclasses.replace(observed, nodes=(dataclasses.replace(gke, name="b"),))
    assert look(about, waiting).apply == ()
    gone = dataclasses.replace(observed, nodes=(L40S,))
    assert template_of(look(about, gone))["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-L40S"
    }
