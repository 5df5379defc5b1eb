"""Names, labels and annotations of what the operator makes.

Called by `resources` and `handlers`. Names of children are the QwenDeployment's own name, which the
CRD keeps fit for a Service; nothing is appended, so nothing can grow too long.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

GROUP = "qwenoperator.io"
VERSION = "v1alpha1"
KIND = "QwenDeployment"
PLURAL = "qwendeployments"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "qwen-operator"
PORT_NAME = "http"
ENGINE_PORT = 8000

OWNER_LABEL = f"{GROUP}/deployment"
MODEL_LABEL = f"{GROUP}/model"
RUNTIME_LABEL = f"{GROUP}/runtime"
MODEL_ANNOTATION = f"{GROUP}/model-id"
HASH_ANNOTATION = f"{GROUP}/manifest-hash"
MEANING_ANNOTATION = f"{GROUP}/meaning"
DECISION_ANNOTATION = f"{GROUP}/decision"
REPLICAS_ANNOTATION = f"{GROUP}/replicas"
# Kubernetes' own: https://kubernetes.io/docs/reference/labels-annotations-taints/
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ALLOWANCE_ANNOTATION = f"{GROUP}/startup-allowance"

REPLICAS_METRIC = "qwen_replicas_needed"
FREE_RATIO_METRIC = "qwen_free_block_ratio"

_MAX_LABEL = 63


def label_value(text: str) -> str:
    """Return the text as a label value: [A-Za-z0-9._-], alphanumeric at both ends, at most 63.

    The true text belongs in an annotation. Cut first, then trim: a cut may end on a dash.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    return clean.lstrip("._-")[:_MAX_LABEL].rstrip("._-")


def selector(name: str) -> dict[str, str]:
    """Return the labels that select a QwenDeployment's pods. Immutable in a Deployment: keep."""
    return {OWNER_LABEL: name}


def labels(name: str) -> dict[str, str]:
    """Return the labels of every child.

    https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
    """
    return {
        "app.kubernetes.io/name": "qwen-engine",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        "app.kubernetes.io/part-of": "qwen-operator",
        **selector(name),
    }


def digest(value: Mapping[str, Any]) -> str:
    """Return a short hash of a JSON object, the same for any order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
