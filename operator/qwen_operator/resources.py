"""Manifests of a QwenDeployment's children: Deployment, Service, what scales it, what guards it.

Called by `reconcile`; pure. All are named like their owner, carry an owner reference (deleting the
owner deletes them, operator or no operator) and are applied server-side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import parse_quantity
from qwen_operator import names
from qwen_operator.decision import Decision, to_annotations
from qwen_operator.inference_pool import GROUP_VERSION as POOL_VERSION
from qwen_operator.inference_pool import pool_body
from qwen_operator.keda import GROUP_VERSION, scaled_object_body
from qwen_operator.pod_guards import budget_body, policy_body
from qwen_operator.pod_template import startup_seconds
from qwen_operator.scaling_view import autoscaler_body
from qwen_operator.spec import PoolSpec, QwenDeploymentSpec
from qwen_operator.spec_autoscaling import AutoscalingSpec

Json = Mapping[str, Any]
_PULL_SECONDS = 600  # for the image, before the start-up allowance begins


@dataclass(frozen=True, slots=True)
class Owner:
    """The QwenDeployment that children belong to."""

    namespace: str
    name: str
    uid: str


def build_deployment(
    owner: Owner, decision: Decision, *, replicas: int, leave_replicas: bool = False
) -> dict[str, Any]:
    """Return the Deployment.

    Args:
        leave_replicas: do not touch the live number; `replicas` is only noted.
    """
    spec = {
        "selector": {"matchLabels": names.selector(owner.name)},
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": _PULL_SECONDS + startup_seconds(decision.template),
        # a new pod needs the GPU (or the memory) that the old one still holds
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        },
        "template": decision.template,
        **({} if leave_replicas else {"replicas": replicas}),
    }
    notes = {**to_annotations(decision), names.REPLICAS_ANNOTATION: str(replicas)}
    return _child(owner, "apps/v1", "Deployment", {"spec": spec}, notes=notes)


def build_service(owner: Owner, spec: QwenDeploymentSpec) -> dict[str, Any]:
    """Return the Service that clients use."""
    port = {"name": names.PORT_NAME, "port": spec.service.port, "targetPort": names.PORT_NAME}
    body = {
        "type": spec.service.type,
        "selector": names.selector(owner.name),
        "ports": [{**port, "protocol": "TCP"}],
    }
    return _child(owner, "v1", "Service", {"spec": body})


def build_service_account(owner: Owner) -> dict[str, Any]:
    """Return the ServiceAccount of the engine's pods, which have no business with the API."""
    return _child(owner, "v1", "ServiceAccount", {"automountServiceAccountToken": False})


def build_autoscaler(owner: Owner, spec: AutoscalingSpec) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler, which reads the operator's own figure."""
    body = {"spec": autoscaler_body(owner.name, spec)}
    return _child(owner, "autoscaling/v2", "HorizontalPodAutoscaler", body)


def build_scaled_object(
    owner: Owner, spec: AutoscalingSpec, *, url: str, may_be_zero: bool
) -> dict[str, Any]:
    """Return KEDA's ScaledObject. It has a finalizer of KEDA's, for which no owner should wait."""
    body = scaled_object_body(owner.name, spec, url=url, may_be_zero=may_be_zero)
    return _child(owner, GROUP_VERSION, "ScaledObject", {"spec": body}, blocks=False)


def build_inference_pool(owner: Owner, pool: PoolSpec) -> dict[str, Any]:
    """Return the InferencePool, through which gateways reach the pods."""
    return _child(owner, POOL_VERSION, "InferencePool", {"spec": pool_body(owner.name, pool)})


def build_budget(owner: Owner) -> dict[str, Any]:
    """Return the PodDisruptionBudget: drains take one pod after the other."""
    return _child(owner, "policy/v1", "PodDisruptionBudget", {"spec": budget_body(owner.name)})


def build_network_policy(owner: Owner, peers: Sequence[Json]) -> dict[str, Any]:
    """Return the NetworkPolicy, which admits these peers and nobody else."""
    body = {"spec": policy_body(owner.name, peers)}
    return _child(owner, "networking.k8s.io/v1", "NetworkPolicy", body)


def num_going(live: Json | None, manifests: Sequence[Json]) -> int:
    """Return how many pods the live Deployment will lose when these manifests are applied."""
    now: int = ((live or {}).get("spec") or {}).get("replicas", 0)
    wanted = [m["spec"].get("replicas", now) for m in manifests if m["kind"] == "Deployment"]
    return max(0, now - min(wanted, default=now))


def is_owned(child: Json, uid: str) -> bool:
    """Say whether an object belongs to the owner with this uid."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(reference.get("uid") == uid for reference in owners)


def is_left_over(child: Json, name: str) -> bool:
    """Say whether an object was made for an earlier QwenDeployment of this name."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(o.get("kind") == names.KIND and o.get("name") == name for o in owners)


def needs_apply(desired: Json, live: Json | None) -> bool:
    """Say whether applying would change anything: another manifest, or somebody's edit."""
    if live is None:
        return True
    notes = live["metadata"].get("annotations") or {}
    wanted = desired["metadata"]["annotations"][names.HASH_ANNOTATION]
    return notes.get(names.HASH_ANNOTATION) != wanted or not _contains(live, desired)


def is_going(live: Json | None) -> bool:
    """Say whether a child is being deleted; its successor is made when it is gone."""
    return live is not None and bool(live["metadata"].get("deletionTimestamp"))


def is_scaled_by_autoscaler(deployment: Json | None, wanted: int) -> bool:
    """Say whether an autoscaler writes the Deployment's own replicas, and may go on (K8-029).

    It should target the QwenDeployment. Until it does, its number stands, for two writers of one
    field would scale up and down for ever; but a user who changes spec.replicas is obeyed.
    """
    metadata = (deployment or {}).get("metadata") or {}
    obeyed = (metadata.get("annotations") or {}).get(names.REPLICAS_ANNOTATION)
    return obeyed == str(wanted) and any(
        str(entry.get("manager", "")).startswith(("kube-controller-manager", "keda"))
        and entry.get("subresource") == "scale"
        and "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        for entry in metadata.get("managedFields") or ()
    )


def _child(
    owner: Owner,
    api_version: str,
    kind: str,
    body: Json,
    *,
    notes: Json | None = None,
    blocks: bool = True,
) -> dict[str, Any]:
    reference = {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "name": owner.name, "uid": owner.uid,
        "controller": True, "blockOwnerDeletion": blocks,
    }  # fmt: skip
    manifest = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": owner.name,
            "namespace": owner.namespace,
            "labels": names.labels(owner.name),
            "annotations": dict(notes or {}),
            "ownerReferences": [reference],
        },
        **body,
    }
    manifest["metadata"]["annotations"][names.HASH_ANNOTATION] = names.digest(manifest)
    return manifest


def _contains(live: Any, desired: Any) -> bool:
    """Say whether everything desired is in the live object, which also holds defaults."""
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return not desired and live is None
        return all(_contains(live.get(key), value) for key, value in desired.items())
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        if not isinstance(live, list) or len(live) != len(desired):
            return not desired and live is None
        return all(_contains(a, b) for a, b in zip(live, desired, strict=True))
    return live == desired or (live is None and desired == "") or _same_quantity(live, desired)


def _same_quantity(live: Any, desired: Any) -> bool:
    """Compare as quantities: the API server stores 1000m as 1."""
    if live is None or isinstance(live, bool) or isinstance(desired, bool):
        return False
    try:
        return bool(parse_quantity(live) == parse_quantity(desired))
    except (TypeError, ValueError):
        return False
