"""How long a pod may take to end, from the plan: the longest answer at the planned speed. Pure.

Called by `spec_plan`, which keeps it in status.plan; used by `pod_template`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qwen_engine.planning import Plan, format_bytes

UNROUTE_SECONDS = 5  # kube-proxies and gateways stop sending before the engine stops listening
EXIT_SECONDS = 10  # last words to slow clients, then the process's end
# cluster-autoscaler waits no longer for a pod (--max-graceful-termination-sec)
_LONGEST_SECONDS = 600
_SHORTEST_DRAIN = 30
SHORTEST_SECONDS = UNROUTE_SECONDS + EXIT_SECONDS + 5  # that a user may ask for

# A step reads the weights and what the cache holds: half of it, as a full one empties while nothing
# new comes. About this share of a data sheet's bandwidth is reached; of a GPU that the catalogue
# lacks, that of the slowest card is taken. On a CPU 25 GB/s, of which 15 are reached: Qwen3-0.6B in
# bfloat16 answers one client with 13 tokens a second on two cores.
_BANDWIDTH_SHARE = 0.6
_UNKNOWN_GPU_GBS, _CPU_GBS = 300, 25
_CACHE_SHARE = 0.5
_STEP_SECONDS = 0.01  # of scheduling and kernel launches, whatever is read


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds from a pod's deletion to its end at the latest, and the arithmetic.

    Attributes:
        drain_seconds: of these, for running answers after SIGTERM.
    """

    seconds: int
    drain_seconds: int
    how: str


def plan_grace(plan: Plan, asked: int | None) -> Grace:
    """Return the grace period of a planned pod; `asked` is the user's own, if there is one."""
    around = UNROUTE_SECONDS + EXIT_SECONDS
    if asked is not None:
        drain = asked - around
        return Grace(asked, drain, f"spec.template.terminationGracePeriodSeconds, {_parts(drain)}")
    step, how = _step(plan)
    needed = math.ceil(plan.max_model_len * step)
    drain = max(_SHORTEST_DRAIN, min(needed, _LONGEST_SECONDS - around))
    bound = ""
    if drain < needed:
        bound = f", at most {drain} s: answers that take longer are ended (finish_reason length)"
    elif drain > needed:
        bound = f", at least {drain} s"
    text = f"{plan.max_model_len:,} tokens × {1000 * step:.1f} ms ({how}) = {needed:,} s{bound}"
    return Grace(drain + around, drain, f"{_parts(drain)}; the longest answer: {text}")


def _parts(drain: int) -> str:
    return f"{UNROUTE_SECONDS} s until nobody sends + {drain} s to answer + {EXIT_SECONDS} s"


def _step(plan: Plan) -> tuple[float, str]:
    """Return the seconds of one token, and the arithmetic."""
    sizes = {line.component: line.num_bytes for line in plan.ledger}
    weights, cache = sizes.get("weights", 0), int(_CACHE_SHARE * sizes.get("kv-cache", 0))
    known = plan.device.bandwidth_gbs
    is_cpu = plan.device.kind == "cpu"
    gbs = _BANDWIDTH_SHARE * (known or (_CPU_GBS if is_cpu else _UNKNOWN_GPU_GBS))
    how = (
        f"{format_bytes(weights)} of weights and {format_bytes(cache)} of KV cache at "
        f"{gbs:,.0f} GB/s + {1000 * _STEP_SECONDS:.0f} ms"
    )
    return _STEP_SECONDS + (weights + cache) / (gbs * 1e9), how
