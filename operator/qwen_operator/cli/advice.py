"""What a person might change, from a lasting state and with the figures behind it. Pure.

Called by `status_command`. A pool that was full a moment ago is none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from qwen_operator.cli.render import duration

Json = Mapping[str, Any]
_LONG_FULL_SECONDS = 10 * 60  # users have been waiting for as long
_LONG_EMPTY_SECONDS = 24 * 3600  # a night and a day


def advise(resource: Json, now: datetime) -> list[str]:
    """Return sentences, the most pressing first; none where all is well."""
    status = resource.get("status") or {}
    found = [*_on_pool(resource, status, now), *_on_accuracy(status)]
    if status.get("observedGeneration", 0) < resource["metadata"].get("generation", 0):
        found.insert(0, "the operator has not seen the latest change of spec yet; does it run?")
    return found


def _on_pool(resource: Json, status: Json, now: datetime) -> list[str]:
    pool = status.get("pool") or {}
    if not pool or "blocks" not in status:
        return []
    lasted = (now - datetime.fromisoformat(pool["since"])).total_seconds()
    if pool["level"] == "NearlyFull" and lasted >= _LONG_FULL_SECONDS:
        return [_when_full(resource, status, duration(lasted))]
    if pool["level"] == "NearlyEmpty" and lasted >= _LONG_EMPTY_SECONDS:
        return [_when_empty(resource, status, duration(lasted))]
    return []


def _when_full(resource: Json, status: Json, lasted: str) -> str:
    plan, replicas = status.get("plan") or {}, resource["spec"].get("replicas", 1)
    ways = [f"raise spec.replicas (now {replicas})"]
    larger = [p for p in plan.get("pools", ()) if p["fits"] and _tokens(p) > _planned_tokens(plan)]
    if larger:
        best = max(larger, key=_tokens)
        ways.append(
            f"set spec.gpu.product to {best['product']}, which holds {_tokens(best):,} tokens "
            f"instead of {_planned_tokens(plan):,}"
        )
    elif plan.get("device", {}).get("kind") == "cpu":
        ways.append("raise spec.engine.resources.limits.memory")
    return (
        f"the KV cache has been nearly full for {lasted}, so requests wait or make room for "
        f"others: {', or '.join(ways)}"
    )


def _when_empty(resource: Json, status: Json, lasted: str) -> str:
    plan, replicas = status.get("plan") or {}, resource["spec"].get("replicas", 1)
    blocks = status["blocks"]
    ways = [f"lower spec.replicas (now {replicas})"] if replicas > 1 else []
    chosen = next((p for p in plan.get("pools", ()) if p["chosen"]), None)
    smaller = [
        p
        for p in plan.get("pools", ())
        if chosen is not None and p["fits"] and p["memoryMiB"] < chosen["memoryMiB"]
    ]
    if smaller:
        least = min(smaller, key=lambda p: int(p["memoryMiB"]))
        ways.append(f"set spec.gpu.product to {least['product']}, on which the model fits too")
    if not ways and plan.get("device", {}).get("kind") == "cpu":
        ways.append("lower spec.engine.resources.limits.memory")
    if not ways:
        ways.append("let the model have a smaller GPU, or serve a larger model on this one")
    return (
        f"the KV cache has been nearly empty for {lasted} ({blocks['used']:,} of "
        f"{blocks['total']:,} blocks used): {', or '.join(ways)}"
    )


def _on_accuracy(status: Json) -> list[str]:
    off = next(
        (
            c
            for c in status.get("conditions", ())
            if c["type"] == "PlanAccurate" and c["status"] == "False"
        ),
        None,
    )
    accuracy = (status.get("plan") or {}).get("accuracy")
    if off is None or accuracy is None:
        return []
    if accuracy["measuredBytes"] > accuracy["plannedBytes"]:
        way = (
            "until the planner knows better, leave it room: lower "
            "spec.engine.overrides.gpuMemoryUtilization, or on a CPU raise the memory limit"
        )
    else:
        way = "memory lies idle; spec.engine.overrides can use it"
    return [f"the plan is off ({accuracy['error']}): {way}. Please report it with this status"]


def _tokens(pool: Json) -> int:
    return int(pool.get("tokens", 0))


def _planned_tokens(plan: Json) -> int:
    return int(plan["blocks"]["tokens"])
