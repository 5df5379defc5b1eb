"""Scale-in under load: no client notices, and the pod that holds the most stays."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.polling import until
from tests.e2e.release import Release
from tests.e2e.served import Served
from tests.e2e.talkers import Talkers

pytestmark = pytest.mark.root

COST = "controller.kubernetes.io/pod-deletion-cost"
CLIENTS = 20


def _is_going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _cost(pod: dict[str, Any]) -> int:
    return int(pod["metadata"].get("annotations", {}).get(COST, 0))


def test_twenty_streams_outlive_a_scale_in_from_three_to_one_and_the_fullest_pod_stays(
    release: Release, serve: Callable[..., Served]
) -> None:
    # 20 s of grace, of which 5 are for answers: what is longer must be ended, not cut
    served = serve("drained", replicas=3, template={"terminationGracePeriodSeconds": 20})
    served.await_available()
    served.await_routed(3)

    def all_answer() -> bool:
        used = served.blocks_used()
        # Costs too: old ones stay as they are while they let the right pods go.
        return bool(used) and all(used.values()) and all(map(_cost, served.pods()))

    with Talkers(served.url(), served.model(), clients=CLIENTS, max_tokens=900, apart=17) as load:
        until(all_answer, what="every pod to answer somebody", within_seconds=60)
        served.kubectl("scale", "qwen", "drained", "--replicas=1")
        until(
            lambda: sum(map(_is_going, served.pods())) == 2,
            what="two pods to go",
            within_seconds=60,
        )
        pods = served.pods()
        (stays,) = [pod for pod in pods if not _is_going(pod)]
        going = [pod for pod in pods if _is_going(pod)]
        assert all(_cost(pod) > 0 for pod in going), "they were in the midst of answers"
        assert _cost(stays) >= max(map(_cost, going))
        until(lambda: len(served.pods()) == 1, what="the pods' end", within_seconds=90)
        so_far = len(load.ends)
        until(
            lambda: len(load.ends) >= so_far + CLIENTS,
            what="streams from the pod that stays",
            within_seconds=120,
        )
    assert [end for end in load.ends if end.finish_reason != "length"] == []
    assert len(load.ends) > 2 * CLIENTS
