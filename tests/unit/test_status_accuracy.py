"""status.plan.accuracy and PlanAccurate: what was planned beside what engines say they took."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome, news
from qwen_operator.status import Reading
from tests.unit.operator_states import (
    LATER,
    NOW,
    condition,
    gpu_spec,
    l4,
    look,
    pod,
    resource,
    rolled_out,
    settle,
)

Json = dict[str, Any]
BLOCKS = {"total": 100, "free": 90, "used": 10, "cached": 5}


def planned_lines(about: Json) -> dict[str, int]:
    """What the plan in status foresees, without what it leaves unused."""
    lines = about["status"]["plan"]["ledger"]
    return {
        line["component"]: line["bytes"]
        for line in lines
        if line["component"] not in ("unused", "reserve")
    }


def with_status(about: Json, outcome: Outcome) -> Json:
    return {**about, "status": dict(outcome.status)}


def serving(num: int = 1) -> tuple[Json, Observed]:
    """A QwenDeployment whose pods all answer, as its status says already."""
    about = resource()
    about["spec"]["replicas"] = num
    about, observed = settle(about)
    observed = rolled_out(observed, ready=num)
    pods = tuple(pod(f"p{i}", ready=True) for i in range(num))
    observed = dataclasses.replace(observed, pods=pods)
    return with_status(about, look(about, observed)), observed


def told(about: Json, observed: Observed, now: str = NOW, **pods: dict[str, int]) -> Outcome:
    """Look at it with what engines say they took."""
    readings = {name: Reading(BLOCKS, measured=lines) for name, lines in pods.items()}
    return look(about, dataclasses.replace(observed, readings=readings), now=now)


def test_before_anything_is_measured_it_is_unknown() -> None:
    outcome = look(*serving())
    assert condition(outcome, "PlanAccurate")[:2] == ("Unknown", "NotMeasured")
    assert "accuracy" not in outcome.status["plan"]


def test_both_are_shown_line_by_line_with_the_error() -> None:
    about, observed = serving()
    lines = planned_lines(about)
    outcome = told(about, observed, p0={**lines, "runtime": lines["runtime"] * 9 // 10})
    accuracy = outcome.status["plan"]["accuracy"]
    found = {line["component"]: line for line in accuracy["lines"]}
    assert list(found) == ["runtime", "weights", "activations", "kv-cache"]
    assert found["runtime"]["error"] == "-10.0 %"
    assert found["weights"]["error"] == "+0.0 %"
    assert accuracy["pod"] == "p0"
    assert accuracy["plannedBytes"] == sum(lines.values())
    assert accuracy["measuredBytes"] == sum(line["measuredBytes"] for line in accuracy["lines"])
    status, reason, message = condition(outcome, "PlanAccurate")
    assert (status, reason) == ("True", "WithinTolerance")
    assert "the line that is off the most is runtime" in message
    assert news(outcome) == []


@pytest.mark.parametrize(
    ("component", "factor"), [("weights", 1.4), ("kv-cache", 0.5), ("activations", 3.0)]
)
def test_beyond_ten_percent_it_is_false_and_names_the_line(component: str, factor: float) -> None:
    about, observed = serving()
    lines = planned_lines(about)
    if component == "activations":  # small beside the rest
        factor = 1 + 0.2 * sum(lines.values()) / lines[component]
    lines[component] = int(lines[component] * factor)
    outcome = told(about, observed, p0=lines)
    status, reason, message = condition(outcome, "PlanAccurate")
    assert (status, reason) == ("False", "PlanInaccurate")
    assert f"the line that is off the most is {component}: " in message
    assert [(n.is_warning, n.reason) for n in news(outcome)] == [(True, "PlanInaccurate")]


def test_two_lines_that_make_up_for_each_other_are_both_wrong() -> None:
    about, observed = serving()
    lines = planned_lines(about)
    moved = sum(lines.values()) // 5
    lines["kv-cache"] -= moved
    lines["runtime"] += moved
    assert condition(told(about, observed, p0=lines), "PlanAccurate")[0] == "False"


def test_a_peak_that_no_request_has_reached_yet_is_no_error() -> None:
    spec = {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}}
    engine = {"overrides": {"maxNumBatchedTokens": 65536, "numGpuBlocksOverride": 300}}
    about, observed = settle(resource({**spec, "engine": engine, "context": {"maxModelLen": 4096}}))
    observed = dataclasses.replace(rolled_out(observed, ready=1), pods=(pod("p0", ready=True),))
    lines = planned_lines(about)
    assert lines["activations"] > 0.2 * sum(lines.values())
    outcome = told(about, observed, p0={**lines, "activations": 0})
    assert condition(outcome, "PlanAccurate")[0] == "True"


def test_what_was_not_planned_at_all_is_named() -> None:
    about, observed = serving()
    lines = planned_lines(about)
    outcome = told(about, observed, p0={**lines, "graphs": sum(lines.values()) // 4})
    status, _, message = condition(outcome, "PlanAccurate")
    assert status == "False"
    assert "graphs" in message
    assert "not planned" in message


def test_beside_a_gpu_host_memory_is_not_mixed_with_the_devices() -> None:
    about, observed = settle(resource(gpu_spec()), Observed(nodes=(l4(),)))
    observed = dataclasses.replace(
        rolled_out(observed, ready=1), pods=(pod("p0", ready=True),), nodes=(l4(),)
    )
    lines = planned_lines(about)
    outcome = told(about, observed, p0={**lines, "host-runtime": 2**40, "swap": 2**40})
    assert condition(outcome, "PlanAccurate")[0] == "True"
    assert outcome.status["plan"]["accuracy"]["measuredBytes"] == sum(lines.values())


def test_of_several_pods_the_one_that_took_the_most_is_shown() -> None:
    about, observed = serving(2)
    lines = planned_lines(about)
    more = {**lines, "runtime": int(lines["runtime"] * 1.2)}
    outcome = told(about, observed, p0=lines, p1=more)
    assert outcome.status["plan"]["accuracy"]["pod"] == "p1"


def test_small_movements_are_not_written_and_large_ones_are() -> None:
    about, observed = serving(2)
    lines = planned_lines(about)
    first = told(about, observed, p0=lines, p1={**lines, "activations": 0})
    about = with_status(about, first)
    total = sum(lines.values())

    def grown(share: float) -> Outcome:
        activations = lines["activations"] + int(share * total)
        return told(about, observed, LATER, p0=lines, p1={**lines, "activations": activations})

    assert grown(0.005).status == first.status
    assert grown(0.05).status["plan"]["accuracy"]["pod"] == "p1"


def test_a_comparison_outlives_silence_and_a_scale_but_not_the_plan() -> None:
    about, observed = serving()
    about = with_status(about, told(about, observed, p0=planned_lines(about)))
    known = about["status"]["plan"]["accuracy"]
    assert look(about, observed).status["plan"]["accuracy"] == known

    scaling = dataclasses.replace(rolled_out(observed, ready=1, replicas=2), nodes=())
    assert look(about, scaling).status["plan"]["accuracy"] == known

    other = {**about, "spec": {**about["spec"], "context": {"maxModelLen": 512}}}
    replacing = told(other, observed, p0=planned_lines(about))
    assert "accuracy" not in replacing.status["plan"] or (
        replacing.status["plan"]["accuracy"]["plannedBytes"] != known["plannedBytes"]
    )


@pytest.mark.parametrize(
    ("used", "level"),
    [(100, "NearlyFull"), (95, "NearlyFull"), (94, "Normal"), (6, "Normal"), (5, "NearlyEmpty")],
)
def test_how_full_the_pool_is_has_a_time_that_moves_only_when_it_changes(
    used: int, level: str
) -> None:
    about, observed = serving()

    def at(used: int, about: Json, now: str) -> Outcome:
        blocks = {"total": 100, "free": 100 - used, "used": used, "cached": 0}
        return look(about, dataclasses.replace(observed, readings={"p0": Reading(blocks)}), now=now)

    first = at(used, about, NOW)
    assert first.status["pool"] == {"level": level, "since": NOW}
    about = with_status(about, first)
    assert at(used, about, LATER).status["pool"]["since"] == NOW
    assert at(50 if level != "Normal" else 0, about, LATER).status["pool"]["since"] == LATER
