"""Answers of engines that cannot be: the operator is asked to believe them, and does not."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.engines import Engine
from tests.control_plane.fleet import Fleet, is_scaling_active
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays
from tests.control_plane.test_autoscaling import FAST

NUM_PODS = 3
HALF_FREE = 45  # three replicas are wanted then: two would be too full, and nobody needs a fourth
HOLD_SECONDS = 4.0  # one more than three misses take; an HPA that believed would move in 1 s
_MISSES = re.compile(r'^qwen_operator_scrape_misses_total\{cause="([^"]+)"\} (\S+)$', re.MULTILINE)


def stats(total: object, free: object, used: object) -> bytes:
    """An engine's /stats, with figures that may be anything: NaN is as Python writes it."""
    blocks = {"total": total, "free": free, "used": used, "cached": 0}
    said: dict[str, Any] = {f"num_{state}_gpu_blocks": count for state, count in blocks.items()}
    said |= {f"num_requests_{state}": 0 for state in ("running", "waiting", "swapped", "finished")}
    return json.dumps({**said, "num_blocks_allocated": 0, "num_blocks_freed": 0}).encode()


EMPTY = stats(100, 100, 0)  # who believes it has no use for three replicas
FULL_BELOW_ZERO = stats(100, -900, 1000)  # who believes it needs thirty
ANSWERS = {
    "NaN": (stats(100, float("nan"), float("nan")), "bad value", "num_free_gpu_blocks is nan"),
    "negative": (FULL_BELOW_ZERO, "bad value", "num_free_gpu_blocks is -900"),
    "total 0": (stats(0, 0, 0), "bad value", "num_total_gpu_blocks is 0"),
    "HTML": (b"<html><body>502 Bad Gateway</body></html>", "not JSON", "not JSON: b'<html>"),
    "10 MB": (EMPTY + b" " * 10_000_000, "too large", "more than 1,048,576 bytes"),
    "redirect": (None, "redirect", "redirected to http://"),
}


def test_answers_that_cannot_be_scale_nothing_are_counted_by_cause_and_told_once(
    qwen: Qwen, metrics_operator: OperatorProcess, kwok_nodes: NodeFactory, fleet: Fleet
) -> None:
    kwok_nodes("plain-0")
    fleet.fill(HALF_FREE)
    scaling = {"maxReplicas": 5, "behavior": FAST}
    qwen.apply("chat", **CPU, replicas=NUM_PODS, autoscaling=scaling)
    qwen.wait_for("chat", "Available", "Serving")
    until(lambda: _is_steady(qwen, fleet), what="three replicas, as wanted", within_seconds=SECONDS)
    assert stays(fleet.replicas, HOLD_SECONDS)
    elsewhere = Engine(free=100)
    try:
        for kind, (raw, cause, words) in ANSWERS.items():
            before, log = _misses(metrics_operator), len(metrics_operator.log)
            fleet.say(raw, redirect="" if raw else f"http://{elsewhere.address}:8000/stats")
            until(
                lambda: is_scaling_active(qwen) is False,
                what=f"no figure, {kind}",
                within_seconds=SECONDS,
            )
            assert stays(fleet.replicas, HOLD_SECONDS), kind
            assert fleet.replicas() == NUM_PODS, kind
            grown = {c: n - before.get(c, 0) for c, n in _misses(metrics_operator).items()}
            assert {c for c, n in grown.items() if n > 0} == {cause}, kind
            assert grown[cause] >= 3 * NUM_PODS, "three misses of each pod, or its word would stand"
            told = [
                line for line in metrics_operator.log[log:].splitlines() if "is not used" in line
            ]
            assert len(told) == NUM_PODS, (kind, told)
            assert all(words in line for line in told), (kind, told)
            fleet.say(None)
            until(
                lambda: _is_steady(qwen, fleet), what=f"well after {kind}", within_seconds=SECONDS
            )
    finally:
        elsewhere.close()
    assert metrics_operator.is_running


def _is_steady(qwen: Qwen, fleet: Fleet) -> bool:
    wanted = qwen.status("chat").get("autoscaling", {}).get("wantedReplicas")
    is_seen = bool(is_scaling_active(qwen)) and len(fleet.engines) == NUM_PODS
    return fleet.replicas() == wanted == NUM_PODS and is_seen


def _misses(operator: OperatorProcess) -> dict[str, float]:
    """Return `qwen_operator_scrape_misses_total` by cause."""
    return {cause: float(count) for cause, count in _MISSES.findall(operator.series())}
