"""reconcile: what is worth a warning is in the plan, in the condition and told once as an event."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_operator.reconcile import Observed, news
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
