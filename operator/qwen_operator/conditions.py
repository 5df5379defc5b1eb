"""The conditions of a QwenDeployment, each True, False or Unknown with a reason and a sentence.

Called by `status`; pure. A condition's lastTransitionTime moves only when its status flips, so that
writing a status never causes the next write (case K8-041).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import format_bytes
from qwen_operator.accuracy import Accuracy, percent
from qwen_operator.decision import Refusal
from qwen_operator.pods import PodFacts, Problem

Json = Mapping[str, Any]
_STATES = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without its times; a status of None is Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Loading:
    """How far an engine's start is: `starting`, `downloading` or `loading`, and percent of it."""

    stage: str
    percent: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the pods are.

    Attributes:
        wanted: pods asked for.
        is_autoscaled: an autoscaler, not spec.replicas, asks for that many.
        settled: the Deployment has done all it was asked, by its own account.
        loading: by pod name, where an engine told.
    """

    wanted: int
    ready: int
    exists: bool
    is_autoscaled: bool
    settled: bool
    pods: Sequence[PodFacts]
    loading: Mapping[str, Loading]


def planned(plan: Json) -> Condition:
    """Return Planned=True with the plan in one sentence."""
    device, blocks = plan["device"], plan["blocks"]
    count = f"{device['count']} × " if device["count"] > 1 else ""
    engine = " under vLLM" if plan.get("engine") == "vllm" else ""
    message = (
        f"{plan['model']['id']} fits on {count}{device['product']} with {device['memoryMiB']:,} MiB"
        f"{engine} ({device['source']}): {blocks['total']:,} KV blocks of {blocks['size']} tokens, "
        f"room for {plan['concurrency']} requests of the full {plan['maxModelLen']:,} tokens"
    )
    notes = "".join(f"; {note}" for note in plan.get("notes", ()))
    notes += "".join(f". Warning: {warning}" for warning in plan.get("warnings", ()))
    return Condition("Planned", True, "PlanFits", message + notes)


def refused(refusal: Refusal) -> Condition:
    """Return Planned=False."""
    return Condition("Planned", False, refusal.reason, refusal.message)


def available(progress: Progress, trouble: Problem | None, endpoint: str) -> Condition:
    """Return Available: whether requests are answered, and if not, why."""
    if progress.ready > 0:
        count = f"{progress.ready} of {progress.wanted} pods answer"
        return Condition("Available", True, "Serving", f"{count} at {endpoint}")
    if progress.wanted == 0:
        return Condition("Available", False, "ScaledToZero", "spec.replicas is 0: nothing runs")
    if trouble is not None:
        return Condition("Available", False, trouble.reason, trouble.message)
    if not progress.exists:
        return Condition("Available", False, "Starting", "the Deployment is being created")
    return _starting(progress)


def progressing(progress: Progress, trouble: Problem | None) -> Condition:
    """Return Progressing: whether something is still being started or replaced."""
    if trouble is not None:
        why = f"nothing moves until Degraded is resolved: {trouble.reason}"
        return Condition("Progressing", False, "Blocked", why)
    if progress.settled and progress.is_autoscaled:
        message = (
            f"an autoscaler sets the Deployment's replicas ({progress.wanted}), so spec.replicas "
            "is not used: let it target this QwenDeployment instead"
        )
        return Condition("Progressing", False, "ScaledByAutoscaler", message)
    if progress.settled:
        return Condition("Progressing", False, "Settled", "everything asked for is in place")
    count = f"{progress.ready} of {progress.wanted} pods are ready"
    return Condition("Progressing", True, "RollingOut", count)


def degraded(trouble: Problem | None) -> Condition:
    """Return Degraded: whether something needs a person."""
    if trouble is None:
        return Condition("Degraded", False, "AsExpected", "nothing needs a person")
    return Condition("Degraded", True, trouble.reason, trouble.message)


def accurate(accuracy: Accuracy | None, *, can_tell: bool = True) -> Condition:
    """Return PlanAccurate: whether an engine took what was planned, and which line is off."""
    if not can_tell:
        message = "vLLM does not report what it takes: compare its log with status.plan.ledger"
        return Condition("PlanAccurate", None, "NotReported", message)
    if accuracy is None:
        message = "no engine of this plan has told yet what it took"
        return Condition("PlanAccurate", None, "NotMeasured", message)
    worst = accuracy.worst
    message = (
        f"pod {accuracy.pod} took {format_bytes(accuracy.measured)} at its peak, planned were "
        f"{format_bytes(accuracy.planned)} ({percent(accuracy)}); the line that is off the most is "
        f"{worst.component}: {format_bytes(worst.measured)} instead of "
        f"{format_bytes(worst.planned)} ({percent(worst)})"
    )
    if accuracy.is_accurate:
        return Condition("PlanAccurate", True, "WithinTolerance", message)
    return Condition("PlanAccurate", False, "PlanInaccurate", message)


def merge(
    conditions: Iterable[Condition], old: Sequence[Json], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """Return conditions as the API holds them, keeping the time of the last flip."""
    before = {condition["type"]: condition for condition in old}
    merged = []
    for condition in conditions:
        state = _STATES[condition.status]
        known = before.get(condition.type, {})
        flipped = known.get("status") != state
        merged.append({
            "type": condition.type,
            "status": state,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": now if flipped else known["lastTransitionTime"],
            "observedGeneration": generation,
        })  # fmt: skip
    return merged


def _starting(progress: Progress) -> Condition:
    if not progress.pods:
        return Condition("Available", False, "Starting", "no pod exists yet")
    pod = progress.pods[0]
    if not pod.is_running:
        place = f" on node {pod.node}" if pod.node else ""
        return Condition("Available", False, "Starting", f"pod {pod.name} is started{place}")
    told = progress.loading.get(pod.name, Loading("starting"))
    verb = {"downloading": "downloads", "loading": "loads"}.get(told.stage)
    if verb is None:
        return Condition("Available", False, "Starting", f"the engine in pod {pod.name} starts")
    done = f": {told.percent}% done" if told.percent is not None else ""
    message = f"pod {pod.name} {verb} the model{done}"
    return Condition("Available", False, told.stage.capitalize(), message)
