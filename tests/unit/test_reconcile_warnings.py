"""reconcile: what is worth a warning is in the plan, in the condition and told once as an event."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.observed import Observed
from qwen_operator.reconcile import news
from tests.unit.operator_states import carry_out, condition, gpu_spec, l4, look, resource

ON_L4 = Observed(nodes=(l4(),))


@pytest.mark.parametrize(
    ("spec", "observed", "words"),
    [
        (
            {"engine": {"overrides": {"gpuMemoryUtilization": 0.99}}},
            ON_L4,
            "gpuMemoryUtilization=0.99 leaves 1 % of the GPU",
        ),
        (
            {"engine": {"overrides": {"dtype": "float32"}}, "model": {"id": "Qwen/Qwen3-0.6B"}},
            ON_L4,
            "dtype=float32 doubles weights",
        ),
        ({"gpu": {"product": "NVIDIA-L4"}}, Observed(), "no node offers a GPU NVIDIA-L4 now"),
        ({"gpu": {"memoryMiB": 24000}}, Observed(), "no node offers a GPU with 24000 MiB now"),
        (
            {"gpu": {"product": "NVIDIA-L4", "memoryMiB": 24576}},
            ON_L4,
            "spec.gpu.memoryMiB=24576 is more than NVIDIA-L4 has",
        ),
    ],
)
def test_a_warning_is_shown_in_three_places_and_told_once(
    spec: dict[str, Any], observed: Observed, words: str
) -> None:
    about = resource(gpu_spec(**spec))
    outcome = look(about, observed)
    [warning] = [w for w in outcome.status["plan"]["warnings"] if words in w]
    assert f"Warning: {warning}" in condition(outcome, "Planned")[2]
    told = [(n.is_warning, n.message) for n in news(outcome) if n.reason == "PlanWarning"]
    assert (True, warning) in told

    again = look({**about, "status": dict(outcome.status)}, carry_out(outcome, observed))
    assert news(again) == []


def test_an_ordinary_spec_has_no_warning() -> None:
    outcome = look(resource(gpu_spec()), ON_L4)
    assert "warnings" not in outcome.status["plan"]
    assert [n.reason for n in news(outcome) if n.is_warning] == []


def test_more_replicas_than_gpus_are_warned_of_and_go_on() -> None:
    about = resource(gpu_spec(replicas=3))
    outcome = look(about, Observed(nodes=(l4("a"), l4("b"))))
    [warning] = outcome.status["plan"]["warnings"]
    assert "spec.replicas=3 is more than the nodes have room for: 2 pods of 1" in warning
    assert f"Warning: {warning}" in condition(outcome, "Planned")[2]
    assert [n.reason for n in news(outcome) if n.is_warning] == ["PlanWarning"]
    assert len(outcome.apply) == 4


def test_that_warning_goes_when_nodes_come_and_restarts_nothing() -> None:
    about, few = resource(gpu_spec(replicas=2)), ON_L4
    before = look(about, few)
    after = carry_out(before, few)
    more = dataclasses.replace(after, nodes=(l4("a"), l4("b")))
    again = look({**about, "status": dict(before.status)}, more)
    assert "warnings" not in again.status["plan"]
    assert again.apply == ()


def test_a_pod_of_more_gpus_than_any_node_has_is_warned_of() -> None:
    engine = {"runtime": "VLLM", "overrides": {"tensorParallelSize": 2}}
    about = resource(gpu_spec(gpu={"count": 2}, engine=engine))
    [warning] = look(about, Observed(nodes=(l4("a"), l4("b")))).status["plan"]["warnings"]
    assert "0 pods of 2 nvidia.com/gpu (2 offered" in warning
