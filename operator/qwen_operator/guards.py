"""Fetches what guards a QwenDeployment's pods. Called by `controller`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from qwen_operator import cluster as api
from qwen_operator import names
from qwen_operator.cluster import Cluster

Json = Mapping[str, Any]
_OF_OTHERS = f"!{names.OWNER_LABEL}"


async def fetch_guards(
    cluster: Cluster, key: tuple[str, str], spec: Json
) -> tuple[Json | None, Json | None, tuple[Json, ...]]:
    """Return the PodDisruptionBudget, the NetworkPolicy, and budgets that others made.

    The last are looked for only where there may be more than one pod, so that there may be ours.
    Raises ApiError.
    """
    namespace, name = key
    budget, policy = await asyncio.gather(
        cluster.fetch(api.BUDGET, namespace, name),
        cluster.fetch(api.NETWORK_POLICY, namespace, name),
    )
    if not spec.get("autoscaling") and spec.get("replicas", 1) < 2:
        return budget, policy, ()
    others = await cluster.fetch_all(api.BUDGET, namespace, selector=_OF_OTHERS)
    return budget, policy, tuple(others)
