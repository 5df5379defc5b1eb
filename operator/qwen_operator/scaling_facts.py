"""What the scaling decision must know of a QwenDeployment besides its engines' words. Pure.

Called by `controller` for each look, used by `scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_operator.autoscaling.samples import Capacity, InvalidSampleError
from qwen_operator.autoscaling.tuning import Tuning
from qwen_operator.decision import recorded
from qwen_operator.errors import InvalidSpecError
from qwen_operator.pods import PodFacts
from qwen_operator.spec_autoscaling import DEFAULT_IDLE_SECONDS, parse_autoscaling
from qwen_operator.spec_fields import parse_object

Json = Mapping[str, Any]
# Until a start was measured: a process that starts, and its weights from an ordinary disk.
_START_SECONDS, _LOAD_BYTES_PER_SECOND = 30.0, 200_000_000


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """A QwenDeployment that is scaled.

    Attributes:
        replicas: asked for now.
        counted: pods there are, as an HPA reads it from /scale.
        planned_seconds: a start, before one was measured.
        cold_starts: as remembered in status, newest last.
        idle_seconds: without a request, after which nothing need run.
        waiting: requests are held for a pod to come.
    """

    pods: tuple[PodFacts, ...]
    replicas: int
    counted: int
    capacity: Capacity
    planned_seconds: float
    cold_starts: tuple[float, ...]
    tuning: Tuning
    idle_seconds: float = DEFAULT_IDLE_SECONDS
    waiting: bool = False


def read_facts(
    resource: Json, deployment: Json | None, pods: Sequence[PodFacts], *, waiting: bool = False
) -> ScalingFacts | None:
    """Return the facts; None where nothing is scaled: off, or no plan is in force."""
    decision = recorded(deployment)
    try:
        spec = parse_autoscaling(parse_object(resource["spec"], "autoscaling"))
        if spec is None or decision is None:
            return None
        capacity = _capacity(decision.plan)
    except (InvalidSpecError, InvalidSampleError, KeyError, ValueError):
        return None  # status says so already
    status = resource.get("status") or {}
    known = (status.get("autoscaling") or {}).get("coldStartSeconds") or ()
    return ScalingFacts(
        pods=tuple(pods),
        replicas=resource["spec"].get("replicas", 1),
        counted=status.get("replicas", 0),
        capacity=capacity,
        planned_seconds=_START_SECONDS + decision.plan["loadBytes"] / _LOAD_BYTES_PER_SECOND,
        cold_starts=tuple(float(seconds) for seconds in known),
        tuning=spec.tuning,
        idle_seconds=spec.idle_seconds,
        waiting=waiting,
    )


def _capacity(plan: Json) -> Capacity:
    settings = {setting["flag"]: setting["value"] for setting in plan["settings"]}
    return Capacity(blocks=plan["blocks"]["total"], sequences=int(settings["--max-num-seqs"]))
