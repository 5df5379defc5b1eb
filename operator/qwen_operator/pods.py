"""What the engine's pods and their Deployment say of themselves, in a user's words.

Called by `status`; pure. A problem is something that will not go away by waiting a little, with the
cause that Kubernetes keeps in the corners of a pod's status: the scheduler's sentence, the image
pull's error, the last words of a container that died.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qwen_operator import names

Json = Mapping[str, Any]
_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_LONGEST_WORDS = 600  # characters of a message that are kept


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something does not run: a CamelCase reason and a sentence.

    Attributes:
        waits_since: RFC 3339, of what may yet turn out well by itself: a volume that is being
            bound, a node that an autoscaler is adding.
    """

    reason: str
    message: str
    waits_since: str | None = None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, reduced to what status speaks about.

    Attributes:
        is_running: the engine's process runs, so it can be asked.
        is_vllm: its figures are in /metrics, under vLLM's names.
        problem: what keeps it from becoming ready.
        uid: tells it from another of its name.
        start_seconds: from scheduled to ready, of a ready pod that never restarted.
        deletion_cost: as Kubernetes reads it; 0 where none is set.
    """

    name: str
    node: str | None
    ip: str | None
    is_ready: bool
    is_running: bool
    problem: Problem | None
    uid: str = ""
    start_seconds: float | None = None
    is_vllm: bool = False
    deletion_cost: int = 0


def parse_pods(pods: Iterable[Json]) -> tuple[PodFacts, ...]:
    """Read pods, oldest first; those on their way out say nothing about the service."""
    staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    ordered = sorted(
        staying,
        key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]),
    )
    return tuple(_parse_pod(pod) for pod in ordered)


def deployment_problem(deployment: Json | None) -> Problem | None:
    """Return why the Deployment cannot make or finish its pods."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or ():
        kind, state = condition.get("type"), condition.get("status")
        message = _shorten(condition.get("message", ""))
        if kind == "ReplicaFailure" and state == "True":
            return Problem("PodsRefused", f"Kubernetes refuses the pods: {message}")
        if kind == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return Problem("Stalled", f"the pods did not become ready in time: {message}")
    return None


def _parse_pod(pod: Json) -> PodFacts:
    status = pod.get("status") or {}
    container = _engine(status)
    state = (container or {}).get("state") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    return PodFacts(
        name=pod["metadata"]["name"],
        node=(pod.get("spec") or {}).get("nodeName"),
        ip=status.get("podIP"),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_running="running" in state,
        problem=_problem(pod, conditions, container),
        is_vllm=(pod["metadata"].get("labels") or {}).get(names.RUNTIME_LABEL) == "vllm",
        uid=pod["metadata"].get("uid", ""),
        start_seconds=_start_seconds(conditions, container),
        deletion_cost=_deletion_cost(pod["metadata"].get("annotations") or {}),
    )


def _deletion_cost(annotations: Json) -> int:
    try:
        return int(annotations.get(names.DELETION_COST_ANNOTATION, 0))
    except ValueError:
        return 0  # the API server lets nothing else in; Kubernetes ignores it too


def _start_seconds(conditions: Json, container: Json | None) -> float | None:
    turned = [conditions.get(kind, {}) for kind in ("PodScheduled", "Ready")]
    times = [c.get("lastTransitionTime") for c in turned if c.get("status") == "True"]
    if len(times) < 2 or None in times or (container or {}).get("restartCount", 0):
        return None
    scheduled, ready = (datetime.fromisoformat(str(time)) for time in times)
    return (ready - scheduled).total_seconds()


def _engine(status: Json) -> Json | None:
    containers: Sequence[Json] = status.get("containerStatuses") or ()
    return next((c for c in containers if c.get("name") == "engine"), None)


def _problem(pod: Json, conditions: Json, container: Json | None) -> Problem | None:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("reason") == "Unschedulable":
        words = _scheduler_words(scheduled.get("message", "no node fits"))
        message = f"pod {name} finds no node: {words}"
        return Problem("Unschedulable", message, scheduled.get("lastTransitionTime"))
    if status.get("phase") == "Failed":
        words = _shorten(status.get("message") or status.get("reason") or "the pod failed")
        return Problem(status.get("reason") or "PodFailed", f"pod {name}: {words}")
    if container is None or container.get("ready"):
        return None
    return _waiting_problem(name, container) or _death(name, container)


def _waiting_problem(name: str, container: Json) -> Problem | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    why, words = waiting.get("reason", ""), _shorten(waiting.get("message", ""))
    if why in _PULL:
        return Problem("ImagePull", f"pod {name} cannot pull its image: {words or why}")
    if why in _CONFIG:
        return Problem("ContainerConfig", f"pod {name} cannot start: {words or why}")
    return None


def _death(name: str, container: Json) -> Problem | None:
    """Tell why the engine died, if it keeps dying: one restart alone may be chance."""
    state = container.get("state") or {}
    restarts = container.get("restartCount", 0)
    now, before = state.get("terminated"), (container.get("lastState") or {}).get("terminated")
    crashing = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    end = now or before
    if end is None or not (now or crashing or restarts > 1):
        return None
    code, words = end.get("exitCode"), _last_words(end.get("message", ""))
    if end.get("reason") == "OOMKilled":
        return Problem(
            "OOMKilled",
            f"the engine in pod {name} was killed for using more memory than its limit "
            f"({_restarts(restarts)}): raise spec.engine.resources.limits.memory, or lower "
            "spec.context.maxModelLen or spec.engine.overrides.maxNumSeqs",
        )
    return Problem(
        "CrashLoop",
        f"the engine in pod {name} ended with exit code {code} ({_restarts(restarts)}): "
        f"{words or 'it left no last words; see kubectl logs --previous'}",
    )


def _restarts(count: int) -> str:
    return "1 restart" if count == 1 else f"{count} restarts"


def _scheduler_words(message: str) -> str:
    """Return the scheduler's sentence without its postscripts on claims and preemption."""
    for postscript in (" no new claims to deallocate", " preemption:", " not found", " still not"):
        head, found, _ = message.rpartition("." + postscript)
        message = head + "." if found else message
    return _shorten(message)


def _last_words(message: str) -> str:
    """Return the last line that is not blank: a traceback ends with its error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return _shorten(lines[-1]) if lines else ""


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_WORDS else text[: _LONGEST_WORDS - 1] + "…"
