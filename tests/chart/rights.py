"""What the chart grants its operator, beside what the operator asks: neither more nor less."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import yaml

from tests.cluster.audit import Call, read_calls
from tests.cluster.client import Cluster

# asked by an admission plugin in the operator's name, which is not in the audit log; the API server
# of the tests runs that plugin
_ASKED_BY_ADMISSION = ("qwenoperator.io", "qwendeployments/finalizers", "update")


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """One verb on one resource; `name` where it is for one object only, `namespace` of a Role."""

    group: str
    resource: str
    verb: str
    name: str = ""
    namespace: str = ""

    def covers(self, call: Call) -> bool:
        """Say whether a call needs this grant."""
        return (
            (self.group, self.resource) == (call.group, call.resource)
            and self.verb in _verbs(call)
            and self.name in ("", call.name)
            and self.namespace in ("", call.namespace)
        )


def grants_of(cluster: Cluster, release: str, namespace: str) -> set[Grant]:
    """Return what the roles of a release grant to the operator, from the release as installed."""
    manifest = cluster.helm("get", "manifest", release, "-n", namespace)
    documents = [document for document in yaml.safe_load_all(manifest) if document]
    bound = {
        (d["roleRef"]["kind"], d["roleRef"]["name"])
        for d in documents
        if d["kind"].endswith("RoleBinding")
    }
    roles = [d for d in documents if (d["kind"], d["metadata"]["name"]) in bound]
    return {grant for role in roles for grant in _grants(role)}


def operators_calls(cluster: Cluster, release: str, namespace: str) -> set[Call]:
    """Return what the release's ServiceAccount asked."""
    assert cluster.run is not None
    user = f"system:serviceaccount:{namespace}:{release}-qwen-operator"
    return read_calls(cluster.run, user=user)


def denied(calls: Iterable[Call]) -> list[Call]:
    """Return calls that were not allowed."""
    return [call for call in calls if call.code in (401, 403)]


def unused(grants: set[Grant], calls: set[Call]) -> list[Grant]:
    """Return grants that no call needed."""
    needed = [g for g in grants if any(g.covers(call) for call in calls)]
    rest = grants - set(needed)
    return [g for g in rest if (g.group, g.resource, g.verb) != _ASKED_BY_ADMISSION]


def _verbs(call: Call) -> tuple[str, ...]:
    """A server-side apply that makes an object is authorised as patch and as create."""
    is_creation = call.verb == "patch" and call.code == 201
    return (call.verb, "create") if is_creation else (call.verb,)


def _grants(role: dict[str, Any]) -> Iterable[Grant]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Grant(group, resource, verb, name, namespace)
