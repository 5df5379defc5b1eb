"""What the metrics API says: discovery, values, and errors as Kubernetes' Status objects. Pure.

Called by `server`.
https://github.com/kubernetes/metrics/blob/master/pkg/apis/external_metrics/v1beta1/types.go
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qwen_operator import names

Json = Mapping[str, Any]
GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
REASONS = {400: "BadRequest", 401: "Unauthorized", 404: "NotFound", 405: "MethodNotAllowed"}


@dataclass(frozen=True, slots=True)
class Figure:
    """What is known of a QwenDeployment.

    Attributes:
        replicas: as an HPA with AverageValue 1 must read it (`hpa_value`).
        free_ratio: of its blocks; None where no pod told.
        at: RFC 3339.
    """

    namespace: str
    name: str
    replicas: int
    free_ratio: float | None
    at: str


_METRICS: Mapping[str, Callable[[Figure], str | None]] = {
    names.REPLICAS_METRIC: lambda figure: str(figure.replicas),
    names.FREE_RATIO_METRIC: lambda figure: (
        None if figure.free_ratio is None else f"{round(1000 * figure.free_ratio)}m"
    ),
}


def answer(
    method: str, path: str, selector: str, figures: Iterable[Figure]
) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body of a request."""
    if method != "GET":
        return failure(405, f"{method} is not possible here: figures can only be read")
    if path.rstrip("/") == ROOT:
        return 200, _discovery()
    words = path.removeprefix(ROOT + "/").split("/")
    if not path.startswith(ROOT + "/") or len(words) != 3 or words[0] != "namespaces":
        return failure(404, f"there is nothing at {path[:200]}")
    _, namespace, metric = words
    if metric not in _METRICS:
        return failure(404, f"no metric {metric[:100]}: there are {', '.join(_METRICS)}")
    wanted = _parse_selector(selector)
    if wanted is None:
        return failure(400, f"labelSelector {selector[:200]!r}: only label=value is understood")
    found = [f for f in figures if f.namespace == namespace and _matches(f, wanted)]
    return 200, _values(metric, found)


def failure(status: int, message: str) -> tuple[int, dict[str, Any]]:
    """Return a Status object that says why a request failed."""
    return status, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS[status],
        "code": status,
    }


def _discovery() -> dict[str, Any]:
    kind = {"singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{"name": metric, **kind, "verbs": ["get"]} for metric in _METRICS],
    }


def _values(metric: str, figures: Iterable[Figure]) -> dict[str, Any]:
    """Return a list of values; an empty one makes an HPA hold."""
    told = [(figure, _METRICS[metric](figure)) for figure in figures]
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {},
        "items": [
            {
                "metricName": metric,
                "metricLabels": names.selector(figure.name),
                "timestamp": figure.at,
                "value": value,
            }
            for figure, value in told
            if value is not None
        ],
    }


def _parse_selector(text: str) -> dict[str, str] | None:
    """Read equality-based requirements; None where there are others."""
    wanted = {}
    for requirement in filter(None, (part.strip() for part in text.split(","))):
        label, equals, value = requirement.partition("=")
        label, value = label.strip(), value.removeprefix("=").strip()
        if not equals or label.endswith("!") or " " in label:
            return None
        wanted[label] = value
    return wanted


def _matches(figure: Figure, wanted: Mapping[str, str]) -> bool:
    labels = names.selector(figure.name)
    return all(labels.get(label) == value for label, value in wanted.items())
