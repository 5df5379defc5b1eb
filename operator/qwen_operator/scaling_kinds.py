"""Which object scales a QwenDeployment: an HPA, KEDA's ScaledObject, or none. Pure.

Called by `reconcile`. Between 1 and more an autoscaler alone moves the replicas. An HPA can do
neither the last step to 0 nor the first from it (kubernetes.io, HPAScaleToZero is a feature gate),
so the built-in provider takes those two itself; KEDA does them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qwen_operator import keda, resources
from qwen_operator.activation import are_waiting, is_activated
from qwen_operator.observed import Observed
from qwen_operator.pods import Problem
from qwen_operator.scaling_view import ScalingView
from qwen_operator.spec import QwenDeploymentSpec
from qwen_operator.spec_autoscaling import AutoscalingSpec, Provider

Json = Mapping[str, Any]
_KEDA_SECONDS = 15.0


def wanted_scaler(
    owner: resources.Owner, spec: QwenDeploymentSpec, observed: Observed, mine: Observed
) -> tuple[Json, Json | None] | None:
    """Return the manifest that is to scale and the live object; None where there is to be none."""
    scaling = spec.autoscaling
    if scaling is None or scaling.provider is Provider.NONE:
        return None
    if scaling.provider is Provider.BUILT_IN:
        is_taken = observed.autoscaler is not None and mine.autoscaler is None
        return None if is_taken else (resources.build_autoscaler(owner, scaling), mine.autoscaler)
    is_taken = observed.scaled_object is not None and mine.scaled_object is None
    if is_taken or not observed.is_keda_there or observed.figures_url is None:
        return None
    # KEDA starts a pod where the least is 1. One at zero may just not be seen by an activator yet,
    # and nobody has asked for it.
    may_be_zero = is_activated(mine.activation) or spec.replicas == 0
    manifest = resources.build_scaled_object(
        owner, scaling, url=observed.figures_url, may_be_zero=may_be_zero
    )
    return manifest, mine.scaled_object


def superfluous(spec: QwenDeploymentSpec | None, mine: Observed) -> tuple[Json, ...]:
    """Return children that the spec asks for no more; of a spec that cannot be read, none."""
    if spec is None:
        return ()
    provider = spec.autoscaling.provider if spec.autoscaling is not None else None
    others = [
        live
        for owner, live in (
            (Provider.BUILT_IN, mine.autoscaler),
            (Provider.KEDA, mine.scaled_object),
        )
        if owner is not provider
    ]
    return tuple(live for live in others if live is not None and not resources.is_going(live))


def view_of(
    spec: QwenDeploymentSpec | None, observed: Observed, mine: Observed, name: str
) -> ScalingView | None:
    """Return what is decided, with what keeps it from taking effect."""
    if spec is None or spec.autoscaling is None:
        return observed.scaling
    problem = _problem(spec.autoscaling, observed, mine, name)
    view = observed.scaling
    if problem is not None:
        view = replace(view or ScalingView(), problem=problem)
    return view and replace(view, is_activated=is_activated(mine.activation))


def scale_over_edge(spec: QwenDeploymentSpec | None, mine: Observed, now: str) -> int | None:
    """Return the replicas to set: 1 for requests that wait, 0 after a while without any."""
    if spec is None or spec.autoscaling is None:
        return None
    if spec.autoscaling.provider is not Provider.BUILT_IN or spec.autoscaling.min_replicas > 0:
        return None
    waiting = are_waiting(mine.activation, now)
    if spec.replicas == 0:
        return 1 if waiting else None
    is_idle = mine.scaling is not None and mine.scaling.is_idle and not waiting
    return 0 if is_idle and is_activated(mine.activation) else None


def look_again_seconds(view: ScalingView | None) -> float:
    """Return when to look again for what no watch tells: whether KEDA is there by now, and well."""
    problem = view.problem if view is not None else None
    is_kedas = problem is not None and problem.reason in (keda.MISSING.reason, keda.NOT_READY)
    return _KEDA_SECONDS if is_kedas else 0.0


def _problem(
    spec: AutoscalingSpec, observed: Observed, mine: Observed, name: str
) -> Problem | None:
    if spec.provider is Provider.BUILT_IN:
        return _taken(observed.autoscaler, mine.autoscaler, name)
    if spec.provider is Provider.NONE:
        return None
    if not observed.is_keda_there:
        return keda.MISSING
    if observed.figures_url is None:
        return keda.NO_FIGURES
    taken = _taken(observed.scaled_object, mine.scaled_object, name)
    return taken or keda.problem_of(mine.scaled_object)


def _taken(there: Json | None, mine: Json | None, name: str) -> Problem | None:
    if there is None or mine is not None or resources.is_left_over(there, name):
        return None
    return Problem(
        "NameTaken",
        f"{there['kind']} {name} exists and does not belong to this QwenDeployment: "
        "delete it, or set spec.autoscaling.enabled to false and keep it",
    )
