"""Events: what a person should hear once, when it becomes so.

Called by `reconcile`; pure. An event is made of a condition that turned or got another reason,
never of a state that merely lasts, so reconciling again, or restarting the operator, repeats none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_operator import names

Json = Mapping[str, Any]
_SCALING_REASONS = {
    "BlocksNeeded": "the load needs more KV blocks than the replicas hold",
    "BlocksSpare": "fewer replicas hold the largest load of late",
    "Enough": "the replicas are as many as the load needs",
    "PodsSilent": "no scale-in while a ready pod gives no figures",
    "PodsLoading": "no scale-in while pods start",
    "LookingBack": "no scale-in before the load was watched for long enough",
    "JustScaledOut": "no scale-in so soon after a scale-out",
}
_LONGEST_MESSAGE = 1024  # bytes the API accepts, and a reader too


@dataclass(frozen=True, slots=True)
class Notice:
    """An event's content."""

    is_warning: bool
    reason: str
    message: str


def notices(old: Sequence[Json], new: Sequence[Json]) -> list[Notice]:
    """Return what changed between two lists of conditions and is worth an event."""
    before = {c["type"]: (c["status"], c["reason"]) for c in old}
    turned = {c["type"]: c for c in new if before.get(c["type"]) != (c["status"], c["reason"])}
    found = []
    if planned := turned.get("Planned"):
        found.append(_notice(planned, is_warning=planned["status"] == "False"))
    degraded = turned.get("Degraded")
    is_refused = any(c["type"] == "Planned" and c["status"] == "False" for c in new)
    if degraded and degraded["status"] == "True" and not is_refused:
        found.append(_notice(degraded, is_warning=True))
    available = turned.get("Available")
    if available and available["status"] == "True":
        found.append(_notice(available, is_warning=False))
    accurate = turned.get("PlanAccurate")
    if accurate and accurate["status"] == "False":
        found.append(_notice(accurate, is_warning=True))
    contract = turned.get("MetricsContract")
    if contract and contract["status"] == "False":
        found.append(_notice(contract, is_warning=True))
    scaling = turned.get("Autoscaling")
    if scaling and scaling["status"] == "False" and scaling["reason"] != "ScaledToZero":
        found.append(_notice(scaling, is_warning=True))
    return found


def warnings(old: Json | None, new: Json | None) -> list[Notice]:
    """Return the warnings of a plan that its predecessor did not have."""
    before: Sequence[str] = (old or {}).get("warnings", ())
    now: Sequence[str] = (new or {}).get("warnings", ())
    return [Notice(True, "PlanWarning", w[:_LONGEST_MESSAGE]) for w in now if w not in before]


def scaling_notices(old: Json | None, new: Json | None) -> list[Notice]:
    """Return a notice when another number of replicas is wanted than before."""
    before, now = ((s or {}).get("wantedReplicas") for s in (old, new))
    if before is None or now is None or before == now:
        return []
    reason = (new or {})["reason"]
    why = _SCALING_REASONS.get(reason, reason)
    return [Notice(False, "ReplicasWanted", f"{now} replicas instead of {before}: {why}")]


def edge_notices(scale: int | None) -> list[Notice]:
    """Return a notice where the replicas are set to 0, or from it."""
    if scale is None:
        return []
    if scale == 0:
        why = "0 replicas: nothing was asked for spec.autoscaling.idleSeconds"
        return [Notice(False, "ScaledToZero", why)]
    return [Notice(False, "Activated", f"{scale} replica: requests wait for one")]


def build_events(
    notes: Iterable[Notice], resource: Json, now: str, *, reporter: str
) -> list[dict[str, Any]]:
    """Return core/v1 Event manifests about a QwenDeployment.

    The name is made of the content, so the same notice is the same object while the API keeps it.
    """
    metadata = resource["metadata"]
    about = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        **{key: metadata[key] for key in ("namespace", "name", "uid")},
    }
    return [_event(note, about, now, reporter) for note in notes]


def _notice(condition: Json, *, is_warning: bool) -> Notice:
    return Notice(is_warning, condition["reason"], condition["message"][:_LONGEST_MESSAGE])


def _event(note: Notice, about: Json, now: str, reporter: str) -> dict[str, Any]:
    content = {"uid": about["uid"], "reason": note.reason, "message": note.message}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{about['name']}.{names.digest(content)}",
            "namespace": about["namespace"],
        },
        "involvedObject": dict(about),
        "type": "Warning" if note.is_warning else "Normal",
        "reason": note.reason,
        "message": note.message,
        "source": {"component": reporter},
        "reportingComponent": reporter,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
