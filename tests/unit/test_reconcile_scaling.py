"""reconcile: who decides on the number of pods."""

from __future__ import annotations

import copy
import dataclasses

from qwen_operator.observed import Observed
from tests.unit.operator_states import (
    applied,
    carry_out,
    condition,
    look,
    resource,
    rolled_out,
    settle,
)


def autoscaled(observed: Observed, replicas: int) -> Observed:
    """The state after an autoscaler wrote the Deployment's own replicas."""
    live = copy.deepcopy(dict(rolled_out(observed, ready=replicas).deployment or {}))
    live["spec"]["replicas"] = replicas
    live["metadata"]["managedFields"] = [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]
    return dataclasses.replace(observed, deployment=live)


def test_an_autoscaler_on_the_deployment_itself_is_not_fought_but_told() -> None:
    about, observed = settle(resource())
    seen = autoscaled(observed, 3)
    outcome = look(about, seen)
    deployment = applied(outcome, "Deployment")
    assert deployment is not None
    assert "replicas" not in deployment["spec"]
    kept = look(about, autoscaled(carry_out(outcome, seen), 3))
    assert kept.apply == ()
    assert kept.status["ready"] == "3/3"
    reason, message = condition(kept, "Progressing")[1:]
    assert reason == "ScaledByAutoscaler"
    assert "let it target this QwenDeployment" in message


def test_a_user_who_scales_is_obeyed_over_an_autoscaler_that_may_be_gone() -> None:
    about, observed = settle(resource())
    scaled = {**about, "spec": {**about["spec"], "replicas": 2}}
    deployment = applied(look(scaled, autoscaled(observed, 3)), "Deployment")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 2
