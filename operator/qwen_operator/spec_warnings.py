"""Specs that can be served, but hardly as their author wishes. Pure.

Called by `spec_plan`. Each sentence names the field and the way out; it shows in status.plan, in
the Planned condition and as an event.
"""

from __future__ import annotations

from qwen_engine.planning import ModelShape
from qwen_operator.spec import QwenDeploymentSpec

_TIGHT_UTILIZATION = 0.95


def warn(spec: QwenDeploymentSpec, model: ModelShape, *, gpus: int) -> tuple[str, ...]:
    """Return what the author of a spec for a GPU should know.

    Args:
        gpus: how many of the planned kind the cluster's nodes offer.
    """
    chosen, found = spec.engine.overrides, []
    utilization = chosen.gpu_memory_utilization
    if utilization is not None and utilization > _TIGHT_UTILIZATION:
        found.append(
            f"spec.engine.overrides.gpuMemoryUtilization={utilization:g} leaves "
            f"{100 * (1 - utilization):.0f} % of the GPU for what is not planned: 0.9 is usual"
        )
    if chosen.dtype == "float32" and model.dtype != "float32":
        found.append(
            f"spec.engine.overrides.dtype=float32 doubles weights and KV cache of a {model.dtype} "
            "checkpoint and makes it no more exact: auto is usual"
        )
    if gpus == 0:
        wish = spec.gpu.product or f"with {spec.gpu.memory_mib} MiB"
        found.append(f"no node offers a GPU {wish} now: pods wait until one comes")
    return tuple(found)
