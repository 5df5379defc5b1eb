"""What service accounts asked of the API server: its own audit log, read back.

The control plane starts with this policy. Tests compare what is recorded with what was granted.
https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
"""

import json
from dataclasses import dataclass

from tests.cluster.paths import RunDirectory


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was answered. `resource` has its subresource: qwendeployments/status."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int


def write_policy(run: RunDirectory) -> None:
    """Have requests of service accounts recorded, without bodies; a watch when it begins."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ],
    }
    run.audit_policy.write_text(json.dumps(policy))


def read_calls(run: RunDirectory, *, user: str) -> set[Call]:
    """Return what a user asked about resources, each once."""
    calls = set()
    for line in run.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef")
        if event["user"]["username"] == user and about is not None:
            calls.add(_call(event, about))
    return calls


def _call(event: dict[str, object], about: dict[str, str]) -> Call:
    status = event.get("responseStatus")
    resource = "/".join(filter(None, (about.get("resource", ""), about.get("subresource", ""))))
    return Call(
        verb=str(event["verb"]),
        group=about.get("apiGroup", ""),
        resource=resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=int(status["code"]) if isinstance(status, dict) and "code" in status else 0,
    )
