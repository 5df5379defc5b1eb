"""status: what the operator observed, in the CRD's words.

Called by `reconcile`; pure. Equal observations give an equal status, so an idle operator writes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from qwen_operator import block_pool, conditions, names
from qwen_operator.accuracy import compare, from_json, to_json
from qwen_operator.conditions import Condition, Loading, Progress
from qwen_operator.contract import Answers, contract_condition
from qwen_operator.decision import Decision, Refusal, recorded
from qwen_operator.pods import PodFacts, Problem, deployment_problem
from qwen_operator.scaling_view import (
    ScalingView,
    kept_condition,
    scaling_condition,
    scaling_status,
)
from qwen_operator.spec_autoscaling import AutoscalingSpec

Json = Mapping[str, Any]
_PATIENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one engine said of itself.

    Attributes:
        blocks: total, free, used and cached KV blocks; None while there are none.
        loading: how far a start is, if it said.
        measured: bytes taken, by ledger component; empty if it did not say.
    """

    blocks: Mapping[str, int] | None = None
    loading: Loading | None = None
    measured: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sight:
    """Everything that status speaks about.

    Attributes:
        wanted: spec.replicas; None where the spec cannot be read.
        is_autoscaled: an autoscaler writes the Deployment's own replicas.
        verdict: the decision, or why there is none.
        failure: why a child could not be applied.
        readings: by pod name; a pod that was not or could not be asked is absent.
        warnings: what is to be told beside the plan's own, of what changes no plan.
        autoscaling: what is asked for; None where it is off.
        scaling: what is decided; None where this operator has not looked yet.
        contract: what was found of all that scaling reads; None where nothing was asked.
    """

    old: Json
    generation: int
    namespace: str
    name: str
    port: int
    wanted: int | None
    verdict: Decision | Refusal
    deployment: Json | None
    pods: tuple[PodFacts, ...]
    is_autoscaled: bool = False
    failure: Problem | None = None
    autoscaling: AutoscalingSpec | None = None
    scaling: ScalingView | None = None
    readings: Mapping[str, Reading] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    contract: Answers | None = None


def build_status(sight: Sight, now: str) -> dict[str, Any]:
    """Return the whole status; `now` is used only where a condition flips."""
    in_force = sight.verdict if isinstance(sight.verdict, Decision) else recorded(sight.deployment)
    progress = _progress(sight)
    compared = _compared(sight, progress, in_force)
    status: dict[str, Any] = {
        "observedGeneration": sight.generation,
        "ready": f"{progress.ready}/{progress.wanted}",
        "replicas": _count(sight.deployment, "replicas"),
        "readyReplicas": progress.ready,
        "selector": ",".join(f"{k}={v}" for k, v in names.selector(sight.name).items()),
        "conditions": conditions.merge(
            [
                *_conditions(sight, progress, now),
                _accurate(compared, in_force),
                *_scaling_conditions(sight),
            ],
            sight.old.get("conditions", ()),
            generation=sight.generation,
            now=now,
        ),
    }
    if in_force is not None:
        status["plan"] = {**_told(sight, in_force), **({"accuracy": compared} if compared else {})}
        status["image"] = in_force.template["spec"]["containers"][0]["image"]
        status["endpoint"] = _endpoint(sight)
    if blocks := _blocks(sight, progress.ready):
        status["blocks"] = blocks
        status["pool"] = block_pool.level(blocks, sight.old.get("pool") or {}, now)
    if scaling := _scaling(sight):
        status["autoscaling"] = scaling
    return status


def patience_seconds(sight: Sight, now: str) -> float:
    """Return how long to wait before what is wrong now is called a fault."""
    trouble = _trouble(sight, _progress(sight))
    if trouble is None or trouble.waits_since is None:
        return 0.0
    waited = datetime.fromisoformat(now) - datetime.fromisoformat(trouble.waits_since)
    return max(0.0, _PATIENCE_SECONDS - waited.total_seconds())


def _conditions(sight: Sight, progress: Progress, now: str) -> list[Condition]:
    trouble = _trouble(sight, progress)
    alarm = None if patience_seconds(sight, now) > 0 else trouble
    verdict = sight.verdict
    return [
        conditions.planned(_told(sight, verdict))
        if isinstance(verdict, Decision)
        else conditions.refused(verdict),
        conditions.available(progress, trouble, _endpoint(sight)),
        conditions.progressing(progress, alarm),
        conditions.degraded(alarm),
    ]


def _accurate(compared: Json, in_force: Decision | None) -> Condition:
    is_vllm = in_force is not None and in_force.plan.get("engine") == "vllm"
    return conditions.accurate(from_json(compared), can_tell=not is_vllm)


def _told(sight: Sight, decision: Decision) -> Json:
    """Return the plan with all that is to be warned of now."""
    warnings = [*decision.plan.get("warnings", ()), *sight.warnings]
    return {**decision.plan, "warnings": warnings} if sight.warnings else decision.plan


def _scaling_conditions(sight: Sight) -> list[Condition]:
    if sight.autoscaling is None:
        return []
    if sight.scaling is None:
        return [kept_condition(sight.old.get("conditions", ()))]
    found = [scaling_condition(sight.scaling, sight.autoscaling, sight.wanted or 0)]
    if sight.contract is not None:
        ready = _count(sight.deployment, "readyReplicas")
        found.append(contract_condition(sight.contract, ready=ready))
    return found


def _scaling(sight: Sight) -> Json | None:
    if sight.autoscaling is None:
        return None
    if sight.scaling is None:
        return sight.old.get("autoscaling")
    return scaling_status(sight.scaling, sight.autoscaling)


def _trouble(sight: Sight, progress: Progress) -> Problem | None:
    """Return the one thing that a person should look at first."""
    if isinstance(sight.verdict, Refusal):
        serving = (
            "pods of the earlier plan go on serving" if progress.ready > 0 else "nothing is started"
        )
        why = f"the Planned condition says what to change; until then {serving}"
        return Problem(sight.verdict.reason, why)
    if sight.failure is not None:
        return sight.failure
    problems = [pod.problem for pod in sight.pods if pod.problem is not None]
    # a pod's own words say more than its Deployment's
    return problems[0] if problems else deployment_problem(sight.deployment)


def _progress(sight: Sight) -> Progress:
    live_wanted = ((sight.deployment or {}).get("spec") or {}).get("replicas", 1)
    wanted = live_wanted if sight.wanted is None or sight.is_autoscaled else sight.wanted
    return Progress(
        wanted=wanted,
        ready=_count(sight.deployment, "readyReplicas"),
        exists=sight.deployment is not None,
        is_autoscaled=sight.is_autoscaled,
        settled=_is_settled(sight.deployment, wanted),
        pods=tuple(pod for pod in sight.pods if not pod.is_ready),
        loading={n: r.loading for n, r in sight.readings.items() if r.loading is not None},
    )


def _is_settled(deployment: Json | None, wanted: int) -> bool:
    if deployment is None:
        return False
    status = deployment.get("status") or {}
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "readyReplicas")]
    return is_seen and all(count == wanted for count in counts)


def _count(deployment: Json | None, key: str) -> int:
    return int(((deployment or {}).get("status") or {}).get(key) or 0)


def _endpoint(sight: Sight) -> str:
    return f"http://{sight.name}.{sight.namespace}.svc:{sight.port}/v1"


def _blocks(sight: Sight, ready: int) -> dict[str, int] | None:
    """Add up the ready pods' blocks; what is not known yet stays as it was last seen."""
    if ready == 0:
        return None
    asked = [sight.readings.get(pod.name, Reading()).blocks for pod in sight.pods if pod.is_ready]
    return block_pool.add_up(asked, sight.old.get("blocks"))


def _compared(sight: Sight, progress: Progress, in_force: Decision | None) -> Json:
    """Compare the plan in force with what its pods took; {} where nothing is known.

    While pods are being replaced the old comparison stands, if it was of this plan.
    """
    if in_force is None or progress.ready == 0:
        return {}
    before = sight.old.get("plan") or {}
    old: Json = before.get("accuracy") or {}
    if before.get("ledger") != in_force.plan["ledger"]:
        old = {}
    if not progress.settled:
        return old
    ready = {pod.name for pod in sight.pods if pod.is_ready}
    measured = {name: r.measured for name, r in sight.readings.items() if name in ready}
    found = compare(in_force.plan, measured, old)
    return old if found is None else to_json(found, old)
