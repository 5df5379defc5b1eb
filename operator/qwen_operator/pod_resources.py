"""CPU, memory and GPUs that the engine's container asks for. Called by `pod_template`; pure."""

from __future__ import annotations

from typing import Any

from qwen_operator.spec import QwenDeploymentSpec

_GIB = 2**30
_CPU_REQUEST = "500m"  # an idle engine; busy ones take what the node has left
# Of each process, one for each GPU: Python, torch, CUDA libraries and the weights' pages in flight.
_GPU_MEMORY_REQUEST = 4 * _GIB
SHARED_MEMORY_BYTES = 2 * _GIB  # of several processes together (vllm docs/deployment/k8s.md)


def build_resources(
    spec: QwenDeploymentSpec, memory_bytes: int | None, *, swap_bytes: int, num_gpus: int
) -> dict[str, Any]:
    """Return limits and requests; what the user wrote stays as written.

    Args:
        memory_bytes: the limit that a CPU plan divides; None on a GPU.
        swap_bytes: host memory that the plan gives to swapped blocks beside a GPU.
        num_gpus: how many the plan uses; 0 on a CPU.
    """
    limits, requests = dict(spec.engine.limits), dict(spec.engine.requests)
    if memory_bytes is not None:
        limits.setdefault("memory", _quantity(memory_bytes))
    if "cpu" not in limits:
        requests.setdefault("cpu", _CPU_REQUEST)
    # without this line Kubernetes would reserve the limit; on a GPU a limit is seldom given
    beside_gpu = num_gpus * _GPU_MEMORY_REQUEST + -(-swap_bytes // _GIB) * _GIB
    beside_gpu += SHARED_MEMORY_BYTES if num_gpus > 1 else 0
    requests.setdefault("memory", limits.get("memory", _quantity(beside_gpu)))
    if num_gpus > 0:
        limits[spec.gpu.resource_name] = num_gpus
    return {"limits": _sorted(limits), "requests": _sorted(requests)}


def _quantity(num_bytes: int) -> str:
    whole, rest = divmod(num_bytes, _GIB)
    return f"{whole}Gi" if rest == 0 else str(num_bytes)


def _sorted(quantities: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(quantities.items()))
