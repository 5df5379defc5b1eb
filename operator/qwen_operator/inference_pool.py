"""The InferencePool of a QwenDeployment, for gateways that choose a pod by its load. Pure.

Called by `resources`. The endpoint picker that it names is the user's: gateways run one per pool.
It finds the pods by labels and reads vLLM's series, which our engine has too.
https://gateway-api-inference-extension.sigs.k8s.io/api-types/inferencepool/
"""

from __future__ import annotations

from typing import Any

from qwen_operator import names
from qwen_operator.spec import PoolSpec

GROUP_VERSION = "inference.networking.k8s.io/v1"


def pool_body(name: str, pool: PoolSpec) -> dict[str, Any]:
    """Return the spec of the InferencePool."""
    return {
        "selector": {"matchLabels": names.selector(name)},
        "targetPorts": [{"number": names.ENGINE_PORT}],
        "endpointPickerRef": {
            "name": pool.picker or f"{name}-epp",  # as the extension's own chart names it
            "port": {"number": pool.port},
            # without a picker any pod is better than none
            "failureMode": "FailOpen",
        },
    }
