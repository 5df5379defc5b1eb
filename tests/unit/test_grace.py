"""How long a pod may take to end: from the plan, within bounds, or as the user says."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_engine.planning import Demands, cpu_device, find_model, gpu_from_spec, make_plan
from qwen_operator.errors import InvalidSpecError
from qwen_operator.grace import plan_grace
from qwen_operator.reconcile import Observed
from qwen_operator.spec import parse_spec
from qwen_operator.spec_plan import plan_spec
from tests.unit.operator_states import flag, gpu_spec, l4, look, resource, template_of


def seconds(product: str, model: str, context: int) -> int:
    plan = make_plan(find_model(model), gpu_from_spec(product), Demands(max_model_len=context))
    return plan_grace(plan, None).seconds


def test_a_longer_context_a_larger_model_and_slower_memory_take_longer() -> None:
    short = seconds("NVIDIA-L4", "Qwen/Qwen3-4B", 4096)
    assert 45 < short < seconds("NVIDIA-L4", "Qwen/Qwen3-4B", 6144) < 600
    assert seconds("NVIDIA-GeForce-RTX-4090", "Qwen/Qwen3-4B", 4096) < short


def test_it_is_never_longer_than_cluster_autoscalers_wait_nor_too_short_to_answer() -> None:
    assert seconds("NVIDIA-L4", "Qwen/Qwen3-4B", 32768) == 600
    assert seconds("NVIDIA-H200", "Qwen/Qwen3-0.6B", 128) == 45


def test_the_arithmetic_is_shown_and_adds_up() -> None:
    plan = make_plan(find_model("Qwen/Qwen3-0.6B"), cpu_device(8 << 30, source="test"), Demands())
    grace = plan_grace(plan, None)
    assert f"{plan.max_model_len:,} tokens" in grace.how
    assert f"{grace.drain_seconds} s to answer" in grace.how
    assert grace.seconds == grace.drain_seconds + 15
    assert "at most 585 s: answers that take longer are ended" in grace.how


def test_the_users_own_wins_and_leaves_the_rest_for_answers() -> None:
    spec = parse_spec(gpu_spec(template={"terminationGracePeriodSeconds": 1000}))
    planned = plan_spec(spec, [l4()])
    assert planned.plan["grace"]["seconds"] == 1000
    assert planned.plan["grace"]["drainSeconds"] == 985
    assert "spec.template.terminationGracePeriodSeconds" in planned.plan["grace"]["how"]


@pytest.mark.parametrize("value", [0, 19, -1, True, "60", 30.5])
def test_a_grace_period_that_cannot_be_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.template\.terminationGrace"):
        parse_spec(
            {
                "model": {"id": "Qwen/Qwen3-0.6B"},
                "template": {"terminationGracePeriodSeconds": value},
            }
        )


def test_the_pod_and_the_engine_are_told_the_same_figures() -> None:
    outcome = look(resource(gpu_spec()), Observed(nodes=(l4(),)))
    grace = outcome.status["plan"]["grace"]
    assert template_of(outcome)["spec"]["terminationGracePeriodSeconds"] == grace["seconds"]
    assert flag(outcome, "--shutdown-timeout") == str(grace["drainSeconds"])
