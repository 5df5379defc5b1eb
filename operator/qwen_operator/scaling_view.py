"""Autoscaling as a user sees it: the HPA's manifest, status.autoscaling and its condition. Pure.

Called by `reconcile` and `status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_operator import names
from qwen_operator.conditions import Condition
from qwen_operator.pods import Problem
from qwen_operator.spec_autoscaling import AutoscalingSpec

Json = Mapping[str, Any]
CONDITION = "Autoscaling"
# Fast up: the decision behind the figure is already sure of itself. Slow down: it looks back
# itself, and what is left here is a net for a figure that errs.
_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    ],
}
_NO_ZERO = "never 0, for no activator holds requests meanwhile (chart: activator.enabled)"
_LONGEST_WINDOW = 120  # seconds; a longer one is the decision's look-back
_SCALE_DOWN = {
    "stabilizationWindowSeconds": _LONGEST_WINDOW,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Percent", "value": 50, "periodSeconds": 60},
        {"type": "Pods", "value": 1, "periodSeconds": 60},
    ],
}


@dataclass(frozen=True, slots=True)
class ScalingView:
    """What was last decided for a QwenDeployment, as far as status tells it.

    Attributes:
        replicas: wanted; None if nothing is known of its pods.
        free_ratio: of all blocks, to two places; None if nothing is known.
        cold_starts: seconds from scheduled to ready, newest last.
        problem: why the figure does not reach the HPA; None if it does.
        is_activated: something holds requests while there is no pod.
        is_idle: nothing was asked of any pod for as long as lets all of them go.
    """

    replicas: int | None = None
    reason: str = "NothingKnown"
    free_ratio: float | None = None
    cold_starts: tuple[float, ...] = ()
    problem: Problem | None = None
    is_idle: bool = False
    is_activated: bool = True


def kept_condition(old: Sequence[Json]) -> Condition:
    """Return the condition as it was, for an operator that has not looked yet."""
    found = next((c for c in old if c["type"] == CONDITION), None)
    if found is None:
        return Condition(CONDITION, None, "Starting", "nothing has been measured yet")
    state = {"True": True, "False": False}.get(found["status"])
    return Condition(CONDITION, state, found["reason"], found["message"])


def autoscaler_body(name: str, spec: AutoscalingSpec) -> dict[str, Any]:
    """Return the spec of the HorizontalPodAutoscaler that scales the QwenDeployment."""
    metric = {
        "name": names.REPLICAS_METRIC,
        "selector": {"matchLabels": names.selector(name)},
    }
    target = {"type": "AverageValue", "averageValue": "1"}
    return {
        "scaleTargetRef": {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name},
        # the last replica is the operator's: 0 needs a feature gate in an HPA
        "minReplicas": max(1, spec.min_replicas),
        "maxReplicas": spec.max_replicas,
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        "behavior": hpa_behavior(spec),
    }


def hpa_behavior(spec: AutoscalingSpec) -> dict[str, Any]:
    """Return how fast an HPA may move, ours or the one that KEDA makes."""
    down = {**_SCALE_DOWN, **spec.behavior.get("scaleDown", {})}
    window = min(_LONGEST_WINDOW, down["stabilizationWindowSeconds"])
    return {
        "scaleUp": {**_SCALE_UP, **spec.behavior.get("scaleUp", {})},
        "scaleDown": {**down, "stabilizationWindowSeconds": window},
    }


def scaling_status(view: ScalingView, spec: AutoscalingSpec) -> dict[str, Any]:
    """Return status.autoscaling."""
    return {
        "minReplicas": spec.min_replicas,
        "maxReplicas": spec.max_replicas,
        "reason": view.reason,
        **({} if view.replicas is None else {"wantedReplicas": view.replicas}),
        **({} if view.free_ratio is None else {"freeRatio": view.free_ratio}),
        "coldStartSeconds": [round(seconds) for seconds in view.cold_starts],
    }


def scaling_condition(view: ScalingView, spec: AutoscalingSpec, replicas: int) -> Condition:
    """Return Autoscaling: whether the number of replicas follows the load, and if not, why."""
    if view.problem is not None:
        return Condition(CONDITION, False, view.problem.reason, view.problem.message)
    if replicas == 0:
        return _at_zero(view, spec)
    if view.replicas is None:
        message = f"no ready pod has told its blocks yet: the replicas stay at {replicas}"
        return Condition(CONDITION, None, "NothingKnown", message)
    if view.replicas > spec.max_replicas:
        message = (
            f"the load wants {view.replicas} replicas: spec.autoscaling.maxReplicas allows no more "
            f"than {spec.max_replicas}"
        )
        return Condition(CONDITION, True, "AtMaximum", message)
    if spec.min_replicas == 0 and not view.is_activated:
        message = f"1 to {spec.max_replicas} replicas as the KV blocks in use demand; {_NO_ZERO}"
        return Condition(CONDITION, True, "NoActivator", message)
    limits = f"{spec.min_replicas} to {spec.max_replicas} replicas"
    return Condition(CONDITION, True, "Following", f"{limits} as the KV blocks in use demand")


def _at_zero(view: ScalingView, spec: AutoscalingSpec) -> Condition:
    if spec.min_replicas > 0:
        message = (
            "spec.replicas is 0, which no HorizontalPodAutoscaler changes: set it to 1 to start"
        )
        return Condition(CONDITION, False, "ScaledToZero", message)
    if not view.is_activated:
        message = f"spec.replicas is 0: set it to 1 to start; {_NO_ZERO}"
        return Condition(CONDITION, False, "NoActivator", message)
    message = "nothing was asked for a while, so nothing runs: the next request starts a pod"
    return Condition(CONDITION, True, "ScaledToZero", message)
