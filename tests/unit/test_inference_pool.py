"""An InferencePool is made where its CRD is, as the spec says, and never taken from anybody."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qwen_operator.errors import InvalidSpecError
from qwen_operator.observed import Observed
from qwen_operator.spec import parse_spec
from tests.unit.operator_states import applied, look, resource

THERE = Observed(are_pools_there=True)


def about(**pool: Any) -> dict[str, Any]:
    found = resource()
    found["spec"]["service"] = {"inferencePool": pool}
    return found


def test_without_its_crd_there_is_none() -> None:
    assert applied(look(resource()), "InferencePool") is None


def test_with_its_crd_there_is_one_that_finds_the_pods_and_names_the_usual_picker() -> None:
    pool = applied(look(resource(), THERE), "InferencePool")
    assert pool is not None
    assert pool["spec"] == {
        "selector": {"matchLabels": {"qwenoperator.io/deployment": "chat"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "name": "chat-epp", "port": {"number": 9002}, "failureMode": "FailOpen",
        },
    }  # fmt: skip
    assert pool["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_another_picker_is_named_and_a_settled_pool_is_applied_once() -> None:
    outcome = look(about(pickerName="mine", pickerPort=9), THERE)
    pool = applied(outcome, "InferencePool")
    assert pool is not None
    assert pool["spec"]["endpointPickerRef"]["name"] == "mine"
    assert pool["spec"]["endpointPickerRef"]["port"] == {"number": 9}
    live = dataclasses.replace(THERE, inference_pool=pool)
    again = look(about(pickerName="mine", pickerPort=9), live)
    assert applied(again, "InferencePool") is None


def test_turned_off_it_goes_but_one_of_somebody_else_is_neither_changed_nor_deleted() -> None:
    mine = applied(look(resource(), THERE), "InferencePool")
    assert mine is not None
    live = dataclasses.replace(THERE, inference_pool=mine)
    assert [gone["kind"] for gone in look(about(enabled=False), live).delete] == ["InferencePool"]
    foreign = {**mine, "metadata": {"name": "chat", "namespace": "ns", "uid": "other"}}
    live = dataclasses.replace(THERE, inference_pool=foreign)
    assert applied(look(resource(), live), "InferencePool") is None
    assert look(about(enabled=False), live).delete == ()


@pytest.mark.parametrize("port", [0, -1, "9002", True])
def test_a_port_that_cannot_be_is_refused_by_its_name(port: Any) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.service\.inferencePool\.pickerPort"):
        parse_spec(about(pickerPort=port)["spec"])
