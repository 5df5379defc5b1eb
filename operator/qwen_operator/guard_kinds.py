"""Which objects guard a QwenDeployment's pods, by its spec and by what others made. Pure.

Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_operator import resources
from qwen_operator.observed import Observed
from qwen_operator.pod_guards import selects
from qwen_operator.spec import QwenDeploymentSpec

Json = Mapping[str, Any]


def wanted_policy(
    owner: resources.Owner, spec: QwenDeploymentSpec, mine: Observed
) -> tuple[Json, Json | None] | None:
    """Return the NetworkPolicy and the live one; None where everybody may connect."""
    if spec.guards.admits is None:
        return None
    peers = (*spec.guards.admits, *mine.engine_peers)
    return resources.build_network_policy(owner, peers), mine.network_policy


def wanted_budget(
    owner: resources.Owner, spec: QwenDeploymentSpec, template: Json, observed: Observed
) -> tuple[Json, Json | None] | None:
    """Return the PodDisruptionBudget and the live one; None where there is to be none.

    Args:
        template: of the pods.
        observed: with what is somebody else's.
    """
    live = observed.budget
    is_taken = live is not None and not resources.is_owned(live, owner.uid)
    if is_taken or not _has_budget(spec) or _is_budgeted(template["metadata"]["labels"], observed):
        return None
    return resources.build_budget(owner), live


def superfluous_guards(spec: QwenDeploymentSpec | None, mine: Observed) -> tuple[Json, ...]:
    """Return guards that are to be no more; of a spec that cannot be read, none."""
    if spec is None:
        return ()
    gone = []
    if spec.guards.admits is None:
        gone.append(mine.network_policy)
    pods = ((mine.deployment or {}).get("spec") or {}).get("template") or {}
    labels = (pods.get("metadata") or {}).get("labels") or {}
    if not _has_budget(spec) or _is_budgeted(labels, mine):
        gone.append(mine.budget)
    return tuple(live for live in gone if live is not None and not resources.is_going(live))


def _has_budget(spec: QwenDeploymentSpec) -> bool:
    """Say whether there may be two pods or more: of one alone a budget only says that it may go."""
    most = max(spec.replicas, spec.autoscaling.max_replicas if spec.autoscaling else 0)
    return spec.guards.has_budget and most > 1


def _is_budgeted(labels: Mapping[str, str], observed: Observed) -> bool:
    """Say whether somebody else's budget is about these pods: with two, no pod can be evicted."""
    return any(selects(budget, labels) for budget in observed.other_budgets)
