"""What guards a QwenDeployment's pods: PodDisruptionBudget and NetworkPolicy. Pure.

Called by `resources` and `guard_kinds`.
https://kubernetes.io/docs/tasks/run-application/configure-pdb/
https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen_operator import names

Json = Mapping[str, Any]


def budget_body(name: str) -> dict[str, Any]:
    """Return the spec of the PodDisruptionBudget: one pod after the other, and never none.

    maxUnavailable rather than minAvailable: it lets the last pod go, so no drain waits for ever.
    """
    return {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.selector(name)},
        # a pod that loads, or fails, serves nobody: it may go at any time
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def policy_body(name: str, peers: Sequence[Json]) -> dict[str, Any]:
    """Return the spec of the NetworkPolicy: these peers, to the engine's port; no peers, nobody.

    What pods ask for themselves (a model's download) is not restricted.
    """
    ports = [{"port": names.ENGINE_PORT, "protocol": "TCP"}]
    return {
        "podSelector": {"matchLabels": names.selector(name)},
        "policyTypes": ["Ingress"],
        # a rule with an empty `from` would admit everybody
        "ingress": [{"from": [dict(peer) for peer in peers], "ports": ports}] if peers else [],
    }


def selects(budget: Json, labels: Mapping[str, str]) -> bool:
    """Say whether a PodDisruptionBudget is about pods with these labels."""
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    """Evaluate one of a label selector's expressions; absent labels are in no set."""
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None
