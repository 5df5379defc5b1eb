"""What the operator and the activator tell each other: an EndpointSlice. Pure.

Called by `scaling_kinds`, `scaling_facts` and `activator`. The activator makes one for each
QwenDeployment that may go to zero, and puts itself in while no pod is ready: kube-proxies and
gateways join all of a Service's slices. An annotation says until when requests are known to wait.
The operator only reads it, so that neither needs a way to the other, nor to be up for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from qwen_operator import names

Json = Mapping[str, Any]
MANAGER = "qwen-activator"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_LABEL = "kubernetes.io/service-name"
WAITING_ANNOTATION = f"{names.GROUP}/waiting-at"
ACTIVATOR_ANNOTATION = f"{names.GROUP}/activator"
RENEW_SECONDS = 5.0  # while requests wait
_BELIEVED = timedelta(seconds=20)  # an activator that died meanwhile holds nothing any more


def slice_name(name: str) -> str:
    """Return the name of a QwenDeployment's own EndpointSlice."""
    return f"{name}-activator"


def build_slice(
    owner: Json,
    *,
    address: str,
    port: int,
    is_routed: bool,
    waiting_at: str | None,
    is_leaving: bool = False,
) -> dict[str, Any]:
    """Return the EndpointSlice.

    Args:
        owner: the QwenDeployment's metadata.
        address, port: of the activator.
        is_routed: put it in: no pod is ready.
        waiting_at: RFC 3339, when requests waited last; None if none do.
        is_leaving: this activator ends: whoever is there may take the slice over.
    """
    name = owner["name"]
    reference = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": name}
    endpoint = {"addresses": [address], "conditions": {"ready": True}}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(name),
            "namespace": owner["namespace"],
            "labels": {**names.selector(name), SERVICE_LABEL: name, MANAGED_BY: MANAGER},
            "annotations": {
                **({} if is_leaving else {ACTIVATOR_ANNOTATION: address}),
                **({WAITING_ANNOTATION: waiting_at} if waiting_at else {}),
            },
            "ownerReferences": [{**reference, "uid": owner["uid"]}],
        },
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [endpoint] if is_routed and not is_leaving else [],
        "ports": [{"name": names.PORT_NAME, "port": port, "protocol": "TCP"}],
    }


def are_waiting(live: Json | None, now: str) -> bool:
    """Say whether the activator holds requests for this slice's QwenDeployment."""
    notes = ((live or {}).get("metadata") or {}).get("annotations") or {}
    try:
        told = datetime.fromisoformat(notes[WAITING_ANNOTATION])
        return abs(datetime.fromisoformat(now) - told) < _BELIEVED
    except (KeyError, TypeError, ValueError):
        return False


def activator_of(live: Json | None) -> str | None:
    """Return the address of the activator that takes care of a slice; None: it has left."""
    notes: Json = ((live or {}).get("metadata") or {}).get("annotations") or {}
    return notes.get(ACTIVATOR_ANNOTATION)


def is_activated(live: Json | None) -> bool:
    """Say whether an activator takes care of this QwenDeployment."""
    labels = ((live or {}).get("metadata") or {}).get("labels") or {}
    return bool(labels.get(MANAGED_BY) == MANAGER)
