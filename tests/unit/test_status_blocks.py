"""status.blocks: what the engines say of their pools, added up."""

from __future__ import annotations

import dataclasses

from qwen_operator.status import Reading
from tests.unit.operator_states import look, pod, seen


def test_blocks_add_up_over_ready_pods() -> None:
    about, observed = seen(pod("a", ready=True), pod("b", ready=True), pod("c"), ready=2)
    blocks = {"total": 100, "free": 90, "used": 10, "cached": 5}
    readings = {name: Reading(blocks) for name in "abc"}
    outcome = look(about, dataclasses.replace(observed, readings=readings))
    assert outcome.status["blocks"] == {"total": 200, "free": 180, "used": 20, "cached": 10}


def test_blocks_stay_as_last_seen_while_an_engine_is_silent_and_go_with_the_last_pod() -> None:
    about, observed = seen(pod("a", ready=True), ready=1)
    blocks = {"total": 100, "free": 90, "used": 10, "cached": 5}
    about = {**about, "status": {**about["status"], "blocks": blocks}}
    assert look(about, observed).status["blocks"] == blocks
    assert "blocks" not in look(about, seen(pod("a"))[1]).status
