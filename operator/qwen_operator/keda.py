"""KEDA's ScaledObject for a QwenDeployment, and what it says of itself. Pure.

Called by `resources` and `scaling_kinds`. Two triggers ask the operator, not the engines: what is
wanted follows from all pods' histories and from how long a start takes, which no sum or mean over a
Service's endpoints holds, and at zero there are no endpoints to ask. One trigger has the number,
for the HPA that KEDA makes; the other says whether there is anything to do, which is what KEDA
counts its cooldown from.
https://keda.sh/docs/latest/scalers/metrics-api/
https://keda.sh/docs/latest/reference/scaledobject-spec/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_operator import names
from qwen_operator.pods import Problem
from qwen_operator.scaling_view import hpa_behavior
from qwen_operator.spec_autoscaling import AutoscalingSpec

Json = Mapping[str, Any]
GROUP_VERSION = "keda.sh/v1alpha1"
_POLLING_SECONDS = 5  # as often as the operator decides; bounds the wait for a start from zero
_NEVER = "1000000000"  # above any number of replicas: that trigger alone activates nothing
NOT_READY = "KedaNotReady"
MISSING = Problem(
    "KedaMissing",
    f"this cluster serves no ScaledObject ({GROUP_VERSION}), so nothing scales: install KEDA "
    "(https://keda.sh/docs/latest/deploy/), or set spec.autoscaling.provider to BuiltIn",
)
NO_FIGURES = Problem(
    "FiguresOff",
    "this operator was installed without the Service that KEDA asks for figures: turn it on "
    "(chart: figures.enabled), or set spec.autoscaling.provider to BuiltIn",
)


def scaled_object_body(
    name: str, spec: AutoscalingSpec, *, url: str, may_be_zero: bool
) -> dict[str, Any]:
    """Return the spec of the ScaledObject that scales the QwenDeployment.

    Args:
        url: where the operator tells this QwenDeployment's figures.
        may_be_zero: something holds requests while no pod is there, or it is at zero already.
    """
    least = spec.min_replicas if may_be_zero else max(1, spec.min_replicas)
    return {
        "scaleTargetRef": {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name},
        "pollingInterval": _POLLING_SECONDS,
        "cooldownPeriod": spec.idle_seconds,
        # else a new one goes to zero at once, whoever has just been served
        "initialCooldownPeriod": spec.idle_seconds,
        "minReplicaCount": least,
        "maxReplicaCount": spec.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": hpa_behavior(spec)}},
        "triggers": [
            _trigger("size", url, "replicas", activation=_NEVER),
            _trigger("activity", url, "busy", activation="0"),
        ],
    }


def problem_of(live: Json | None) -> Problem | None:
    """Return what KEDA says is wrong with a ScaledObject; None if nothing is, or not yet."""
    conditions = ((live or {}).get("status") or {}).get("conditions") or ()
    ready: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
    if ready.get("status") != "False":
        return None
    words = " ".join(str(ready.get("message", "")).split())[:300]
    return Problem(NOT_READY, f"KEDA cannot scale by ScaledObject: {words}")


def _trigger(name: str, url: str, value: str, *, activation: str) -> dict[str, Any]:
    return {
        "type": "metrics-api",
        "name": name,
        "metricType": "AverageValue",
        "metadata": {
            "url": url,
            "format": "json",
            "valueLocation": value,
            "targetValue": "1",
            "activationTargetValue": activation,
        },
    }
