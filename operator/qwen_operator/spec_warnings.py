"""Specs that can be served, but hardly as their author wishes. Pure.

Called by `spec_plan`. Each sentence names the field and the way out; it shows in status.plan, in
the Planned condition and as an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen_engine.planning import ModelShape
from qwen_operator.node_facts import NodeFacts
from qwen_operator.runtime import NEWEST
from qwen_operator.spec import QwenDeploymentSpec

Json = Mapping[str, Any]
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
    if spec.engine.is_vllm and spec.engine.version is None and spec.engine.image is not None:
        found.append(
            f"the tag of spec.engine.image={spec.engine.image} names no release of vLLM, so "
            f"{NEWEST} is planned: spec.engine.version says which it is"
        )
    if spec.engine.is_vllm and spec.autoscaling is not None:
        found.append(
            "spec.autoscaling: vLLM counts neither blocks taken nor given back, so no number of "
            "replicas is computed for it and spec.replicas stands: scale on its own metrics instead"
        )
    if gpus == 0:
        wish = spec.gpu.product or f"with {spec.gpu.memory_mib} MiB"
        found.append(f"no node offers a GPU {wish} now: pods wait until one comes")
    return tuple(found)


def warn_of_replicas(
    spec: QwenDeploymentSpec, plan: Json, selector: Json, nodes: Sequence[NodeFacts]
) -> tuple[str, ...]:
    """Return a warning if the nodes that pods are led to cannot hold them all.

    Said beside the plan and never part of it: a scale, or a node that comes, changes no plan.

    Args:
        selector: the node labels that pods are led by.
    """
    each, resource_name = int(plan["device"]["count"]), spec.gpu.resource_name
    offers = [
        node.offers(resource_name)
        for node in nodes
        if all(node.labels.get(key) == value for key, value in selector.items())
    ]
    if each == 0 or sum(offers) == 0:  # that there is no GPU at all is told by the plan
        return ()
    room = sum(count // each for count in offers)
    if spec.replicas <= room:
        return ()
    where = ", ".join(f"{key}={value}" for key, value in sorted(selector.items())) or "any"
    return (
        f"spec.replicas={spec.replicas} is more than the nodes have room for: {room} pods of "
        f"{each} {resource_name} ({sum(offers)} offered, node label {where}); the others wait",
    )
