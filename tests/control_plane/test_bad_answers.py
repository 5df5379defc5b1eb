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
    qwen.apply("chat", **CPU, replicas=3, autoscaling=scaling)
    qwen.wait_for("chat", "Available", "Serving")
    # What a start takes is planned first and then measured, and fewer may be wanted from then on.
    until(
        lambda: _await_steady(qwen, fleet) or stays(fleet.replicas, HOLD_SECONDS),
        what="as many replicas for a while",
        within_seconds=SECONDS,
    )
    elsewhere = Engine(free=100)
    try:
        for kind, (raw, cause, words) in ANSWERS.items():
            count, before = fleet.replicas(), _misses(metrics_operator)
            log = len(metrics_operator.log)
            fleet.say(raw, redirect="" if raw else f"http://{elsewhere.address}:8000/stats")
            until(
                lambda: is_scaling_active(qwen) is False,
                what=f"no figure, {kind}",
                within_seconds=SECONDS,
            )
            assert stays(fleet.replicas, HOLD_SECONDS), kind
            assert fleet.replicas() == count, kind
            assert _new_causes(before, _misses(metrics_operator)) == {cause}, kind
            told = _told(metrics_operator.log[log:])
            assert len(told) == count, (kind, told)
            assert all(words in line for line in told), (kind, told)
            fleet.say(None)
            _await_steady(qwen, fleet)
    finally:
        elsewhere.close()
    assert metrics_operator.is_running


def _await_steady(qwen: Qwen, fleet: Fleet) -> None:
    """Wait until there are as many replicas as are wanted, and all are asked."""

    def is_steady() -> bool:
        count, said = fleet.replicas(), qwen.status("chat").get("autoscaling", {})
        is_seen = is_scaling_active(qwen) is True and said.get("reason") != "PodsSilent"
        return is_seen and said.get("wantedReplicas") == count == len(qwen.all("pod")) > 1

    try:
        until(is_steady, what="steady", within_seconds=2 * SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {fleet.replicas()} replicas, {qwen.status('chat')}") from None


def _misses(operator: OperatorProcess) -> dict[str, float]:
    """Return `qwen_operator_scrape_misses_total` by cause."""
    return {cause: float(count) for cause, count in _MISSES.findall(operator.series())}


def _new_causes(before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Return the causes that were counted; an answer may also be late, on a machine as busy."""
    return {c for c, n in after.items() if n - before.get(c, 0) >= 3} - {"timeout"}


def _told(log: str) -> list[str]:
    """Return what the log says of answers that are not used, late ones left out."""
    lines = [line for line in log.splitlines() if "is not used" in line]
    return [line for line in lines if "no answer in" not in line]
