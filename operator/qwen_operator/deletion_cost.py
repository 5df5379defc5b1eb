"""Which pods go first when a deployment shrinks: those with the fewest used KV blocks. Pure.

Called by `scale_in`. A pod's cost is the number of its used blocks, kept in an annotation that the
ReplicaSet controller reads: of ready pods, those with the least cost go first.
https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qwen_operator.pods import PodFacts

Blocks = Mapping[str, int]  # total and used
_STALE_SHARE = 0.1  # of a pod's blocks


def drift(pod: PodFacts, blocks: Blocks) -> float:
    """Return how far a pod's cost is off, as a share of its blocks; 0 if not worth a write.

    Worth one is more than a tenth of the pool, and a pod that turned idle or is so no more.
    """
    used, total = blocks["used"], max(1, blocks["total"])
    share = abs(used - pod.deletion_cost) / total
    is_turned = (used == 0) != (pod.deletion_cost == 0)
    return share if share > _STALE_SHARE or is_turned else 0.0


def costs_before_scale_in(
    pods: Sequence[PodFacts], blocks: Mapping[str, Blocks], going: int
) -> dict[str, int]:
    """Return, by pod's name, the costs to write so that the right pods go; mostly none.

    Args:
        blocks: by pod's name; of pods that did not tell the present cost stands.
        going: pods that the deployment is to lose. Those that are not ready go first anyway.
    """
    ready = [pod for pod in pods if pod.is_ready]
    going -= len(pods) - len(ready)
    if going <= 0 or going >= len(ready):
        return {}
    used = {
        pod.name: blocks[pod.name]["used"] if pod.name in blocks else pod.deletion_cost
        for pod in ready
    }
    if _is_right(ready, used, going):
        return {}
    return {pod.name: used[pod.name] for pod in ready if used[pod.name] != pod.deletion_cost}


def _is_right(ready: Sequence[PodFacts], used: Mapping[str, int], going: int) -> bool:
    """Say whether the costs as they are single out pods that none of the others undercuts."""
    by_cost = sorted(ready, key=lambda pod: pod.deletion_cost)
    leaving, staying = by_cost[:going], by_cost[going:]
    is_clear = leaving[-1].deletion_cost < staying[0].deletion_cost
    most_lost, least_kept = (
        max(used[pod.name] for pod in leaving),
        min(used[pod.name] for pod in staying),
    )
    is_all_same = min(used.values()) == max(used.values())
    return is_all_same or (is_clear and most_lost <= least_kept)
