"""The Kubernetes API as the controller sees it: a narrow protocol, so that tests can stand in.

Implemented by `http_cluster`. Speaks JSON objects; knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from qwen_operator import names

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource type and its place in the API's paths."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Return the path of a collection or of one object; no namespace means all, or none."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        scope = f"/namespaces/{namespace}" if namespace is not None else ""
        tail = f"/{name}" if name is not None else ""
        return f"{root}{self.api_version}{scope}/{self.plural}{tail}"


QWEN_DEPLOYMENT = Kind(names.API_VERSION, names.KIND, names.PLURAL)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
SERVICE = Kind("v1", "Service", "services")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
POD = Kind("v1", "Pod", "pods")
NODE = Kind("v1", "Node", "nodes")
EVENT = Kind("v1", "Event", "events")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INFERENCE_POOL = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")
API_SERVICE = Kind("apiregistration.k8s.io/v1", "APIService", "apiservices")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
_APPLIED = (
    QWEN_DEPLOYMENT, DEPLOYMENT, SERVICE, SERVICE_ACCOUNT, AUTOSCALER, SCALED_OBJECT,
    ENDPOINT_SLICE, INFERENCE_POOL, BUDGET, NETWORK_POLICY, API_SERVICE, CRD,
)  # fmt: skip
KINDS = {kind.kind: kind for kind in _APPLIED}


class Cluster(Protocol):
    """What the controller asks of the API. Every method raises ApiError."""

    async def fetch(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Return one object, of no namespace where the kind has none; None if there is none."""
        ...

    async def fetch_all(
        self, kind: Kind, namespace: str | None = None, *, selector: str = ""
    ) -> list[Json]:
        """Return all objects of a kind in a namespace, or everywhere."""
        ...

    async def serves(self, kind: Kind) -> bool:
        """Say whether the API knows a kind: its CRD may not be installed."""
        ...

    async def scale(self, resource: Json, replicas: int) -> None:
        """Set a QwenDeployment's replicas through /scale, unless it has changed meanwhile."""
        ...

    async def fetch_metric(self, namespace: str, metric: str, selector: str) -> list[Json]:
        """Return the values of an external metric, as a HorizontalPodAutoscaler asks for them."""
        ...

    async def apply(self, manifest: Json) -> None:
        """Apply an object server-side as this operator, taking over fields others hold."""
        ...

    async def delete(self, manifest: Json) -> None:
        """Delete this very object; one that is gone, or another by now, is let be."""
        ...

    async def annotate(
        self, kind: Kind, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str]
    ) -> None:
        """Set annotations of this very object; one that is gone, or another by now, is let be."""
        ...

    async def apply_status(self, resource: Json, status: Json) -> None:
        """Replace this operator's part of a QwenDeployment's status."""
        ...

    async def record(self, event: Json) -> None:
        """Create an Event, or count it once more if it is there already."""
        ...
