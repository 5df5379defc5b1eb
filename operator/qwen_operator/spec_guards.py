"""spec.podDisruptionBudget and spec.networkPolicy: what guards the pods. Pure.

Called by `spec`. The CRD refuses what is refused here; an older CRD may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec_fields import parse_object

Json = Mapping[str, Any]
_FROM = "spec.networkPolicy.from"
_SAME_NAMESPACE: Json = {"podSelector": {}}  # without a namespaceSelector: the policy's own
_PEER_FIELDS = frozenset(("podSelector", "namespaceSelector", "ipBlock"))


@dataclass(frozen=True, slots=True)
class GuardsSpec:
    """What guards the pods.

    Attributes:
        has_budget: a PodDisruptionBudget is wanted, where there may be more than one pod.
        admits: who may connect, as in a NetworkPolicy's `from`; None: everybody, by no policy.
    """

    has_budget: bool = True
    admits: tuple[Json, ...] | None = None


def parse_guards(spec: Json) -> GuardsSpec:
    """Read both fields.

    Raises:
        InvalidSpecError: a field cannot be meant.
    """
    budget = parse_object(spec, "podDisruptionBudget")
    return GuardsSpec(budget.get("enabled", True) is not False, _parse_policy(spec))


def is_peer(found: object) -> bool:
    """Say whether this may be one of a NetworkPolicy's peers; one without a field is refused."""
    return isinstance(found, Mapping) and bool(found) and set(found) <= _PEER_FIELDS


def _parse_policy(spec: Json) -> tuple[Json, ...] | None:
    found = parse_object(spec, "networkPolicy")
    if spec.get("networkPolicy") is None or found.get("enabled", True) is False:
        return None
    peers = found.get("from")
    if peers is None:
        return (_SAME_NAMESPACE,)
    # to Kubernetes an empty list is everybody, to most readers nobody
    if not isinstance(peers, list) or not peers:
        raise InvalidSpecError(
            _FROM, "name at least one peer, or leave it out: then this namespace"
        )
    for peer in peers:
        if not is_peer(peer):
            raise InvalidSpecError(
                _FROM, f"{peer!r}: give podSelector, namespaceSelector, both, or ipBlock"
            )
    return tuple(peers)
