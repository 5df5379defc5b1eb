"""The whole of the operator's judgement: (QwenDeployment, observed) → actions + status. Pure.

Called by `controller`, which fetches the observed state, carries the actions out and writes the
status. No I/O and no clock here: equal input gives equal output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_operator import resources
from qwen_operator.contract import AGAIN_SECONDS
from qwen_operator.decision import Decision, Refusal, decide
from qwen_operator.errors import InvalidSpecError
from qwen_operator.events import Notice, edge_notices, notices, scaling_notices, warnings
from qwen_operator.guard_kinds import superfluous_guards, wanted_budget, wanted_policy
from qwen_operator.node_facts import NodeFacts
from qwen_operator.observed import Observed
from qwen_operator.pod_defaults import NO_DEFAULTS, PodDefaults
from qwen_operator.pod_template import build_pod_template
from qwen_operator.pods import Problem, parse_pods
from qwen_operator.runtime import DEFAULT_VLLM_IMAGE, image_of, with_release
from qwen_operator.scaling_kinds import (
    look_again_seconds,
    scale_over_edge,
    superfluous,
    view_of,
    wanted_scaler,
)
from qwen_operator.spec import QwenDeploymentSpec, parse_spec
from qwen_operator.spec_plan import Planned
from qwen_operator.spec_warnings import warn_of_replicas
from qwen_operator.status import Sight, build_status, patience_seconds

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be done.

    Attributes:
        apply: manifests to apply server-side, in this order.
        status: the status to be; equal to the present one when there is nothing to write.
        sight: what the status was made of, to make it again when an action fails.
        delete: live objects to delete.
        scale: replicas to be, where no autoscaler can move them: to 0, and from it.
        look_again_seconds: when time alone will change the status; 0 if it will not.
    """

    apply: tuple[Json, ...]
    status: Json
    sight: Sight
    look_again_seconds: float = 0.0
    delete: tuple[Json, ...] = ()
    scale: int | None = None


def reconcile(
    resource: Json,
    observed: Observed,
    *,
    engine_image: str,
    vllm_image: str = DEFAULT_VLLM_IMAGE,
    pod_defaults: PodDefaults = NO_DEFAULTS,
    now: str,
) -> Outcome | None:
    """Return what to do about a QwenDeployment; None if it is being deleted.

    Args:
        engine_image, vllm_image: the images of specs that name none, by runtime.
        pod_defaults: what all engines' pods get besides.
        now: the time for conditions that flip, RFC 3339 in UTC.
    """
    metadata = resource["metadata"]
    if metadata.get("deletionTimestamp"):
        return None
    owner = resources.Owner(metadata["namespace"], metadata["name"], metadata["uid"])
    mine = observed.owned_by(owner.uid)
    spec, verdict = _judge(resource, owner, mine, (engine_image, vllm_image), pod_defaults)
    sight = Sight(
        old=resource.get("status") or {},
        generation=metadata.get("generation", 0),
        namespace=owner.namespace,
        name=owner.name,
        port=spec.service.port if spec else 8000,
        wanted=spec.replicas if spec else None,
        is_autoscaled=spec is not None
        and resources.is_scaled_by_autoscaler(mine.deployment, spec.replicas),
        verdict=verdict,
        deployment=mine.deployment,
        pods=parse_pods(mine.pods) if mine.deployment else (),
        readings=mine.readings,
        failure=_taken(spec, observed, mine, owner.name),
        warnings=_crowding(spec, verdict, mine.nodes),
        autoscaling=spec.autoscaling if spec else None,
        scaling=view_of(spec, observed, mine, owner.name),
        contract=observed.contract,
    )
    apply: tuple[Json, ...] = ()
    is_free = not _foreign(spec, observed, mine)
    if spec is not None and isinstance(verdict, Decision) and is_free:
        others = (
            wanted_scaler(owner, spec, observed, mine),
            _wanted_pool(owner, spec, observed, mine),
            wanted_budget(owner, spec, verdict.template, observed),
        )
        apply = _actions(owner, spec, verdict, mine, [o for o in others if o is not None])
    delete = (
        *superfluous(spec, mine),
        *_superfluous_pool(spec, mine),
        *superfluous_guards(spec, mine),
    )
    scale = scale_over_edge(spec, mine, now)
    status = build_status(sight, now)
    patience = patience_seconds(sight, now) or look_again_seconds(sight.scaling)
    if observed.contract is not None and not observed.contract.are_whole:
        patience = patience or AGAIN_SECONDS
    return Outcome(apply, status, sight, patience, delete, scale)


def with_failure(outcome: Outcome, message: str, now: str) -> Outcome:
    """Return the outcome with the status that tells why a manifest was refused."""
    sight = replace(outcome.sight, failure=Problem("ApplyRefused", message))
    return Outcome(outcome.apply, build_status(sight, now), sight, delete=outcome.delete)


def news(outcome: Outcome) -> list[Notice]:
    """Return what to tell in events once the status is written."""
    old, new = outcome.sight.old, outcome.status
    found = notices(old.get("conditions", ()), new["conditions"])
    found += warnings(old.get("plan"), new.get("plan"))
    found += edge_notices(outcome.scale)
    return [*found, *scaling_notices(old.get("autoscaling"), new.get("autoscaling"))]


def _judge(
    resource: Json,
    owner: resources.Owner,
    mine: Observed,
    images: tuple[str, str],
    defaults: PodDefaults,
) -> tuple[QwenDeploymentSpec | None, Decision | Refusal]:
    try:
        spec = parse_spec(resource["spec"])
    except InvalidSpecError as error:
        return None, Refusal("InvalidSpec", str(error))
    image = image_of(spec, engine=images[0], vllm=images[1])
    spec = with_release(spec, image)

    def build_template(planned: Planned) -> Json:
        return build_pod_template(owner.name, spec, planned, image=image, defaults=defaults)

    verdict = decide(
        spec,
        mine.nodes,
        mine.deployment,
        image=image,
        build_template=build_template,
        defaults=defaults,
    )
    return spec, verdict


def _crowding(
    spec: QwenDeploymentSpec | None, verdict: Decision | Refusal, nodes: tuple[NodeFacts, ...]
) -> tuple[str, ...]:
    if spec is None or isinstance(verdict, Refusal):
        return ()
    selector = verdict.template["spec"].get("nodeSelector") or {}
    return warn_of_replicas(spec, verdict.plan, selector, nodes)


def _actions(
    owner: resources.Owner,
    spec: QwenDeploymentSpec,
    decision: Decision,
    mine: Observed,
    others: Sequence[tuple[Json, Json | None]],
) -> tuple[Json, ...]:
    leave = resources.is_scaled_by_autoscaler(mine.deployment, spec.replicas)
    deployment = resources.build_deployment(
        owner, decision, replicas=spec.replicas, leave_replicas=leave
    )
    policy = wanted_policy(owner, spec, mine)
    wanted: list[tuple[Json, Json | None]] = [
        *([] if policy is None else [policy]),  # first: no pod is open before it is closed
        (resources.build_service_account(owner), mine.service_account),
        (resources.build_service(owner, spec), mine.service),
        (deployment, mine.deployment),
        *others,
    ]
    return tuple(
        manifest
        for manifest, live in wanted
        if not resources.is_going(live) and resources.needs_apply(manifest, live)
    )


def _wanted_pool(
    owner: resources.Owner, spec: QwenDeploymentSpec, observed: Observed, mine: Observed
) -> tuple[Json, Json | None] | None:
    """Return the InferencePool; None where there is to be none, or somebody has made one."""
    is_taken = observed.inference_pool is not None and mine.inference_pool is None
    if spec.service.pool is None or is_taken or not observed.are_pools_there:
        return None
    return resources.build_inference_pool(owner, spec.service.pool), mine.inference_pool


def _superfluous_pool(spec: QwenDeploymentSpec | None, mine: Observed) -> tuple[Json, ...]:
    live = mine.inference_pool
    is_wanted = spec is None or spec.service.pool is not None
    return () if live is None or is_wanted or resources.is_going(live) else (live,)


def _foreign(
    spec: QwenDeploymentSpec | None, observed: Observed, mine: Observed
) -> dict[str, Json]:
    """Return what carries a child's name and is not ours; it is never overwritten."""
    pairs = {
        "Deployment": (observed.deployment, mine.deployment),
        "Service": (observed.service, mine.service),
        "ServiceAccount": (observed.service_account, mine.service_account),
    }
    if spec is not None and spec.guards.admits is not None:  # else pods would be open unnoticed
        pairs["NetworkPolicy"] = (observed.network_policy, mine.network_policy)
    return {
        kind: there for kind, (there, own) in pairs.items() if there is not None and own is None
    }


def _taken(
    spec: QwenDeploymentSpec | None, observed: Observed, mine: Observed, name: str
) -> Problem | None:
    """Return a problem if a child's name is in use.

    Children of an earlier QwenDeployment of the same name are none: they are about to go.
    """
    taken = [
        kind
        for kind, there in _foreign(spec, observed, mine).items()
        if not resources.is_left_over(there, name)
    ]
    if not taken:
        return None
    return Problem(
        "NameTaken",
        f"{' and '.join(taken)} {name} exists and does not belong to this QwenDeployment: delete "
        "it, or give this QwenDeployment another name",
    )
