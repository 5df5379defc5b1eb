"""The decision behind a Deployment: the plan, and the pod template made from it.

Called by `reconcile`; pure. A decision is recorded in the Deployment's annotations, beside the
pods it made, and kept as long as the spec means the same: neither an operator upgrade, nor nodes
that come and go, nor a scale ever restarts pods that serve (cases K8-057, K8-059).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning import (
    DoesNotFitError,
    InvalidConfigError,
    InvalidDemandError,
    PlanningError,
    UnknownGpuError,
    UnknownModelError,
    UnsupportedModelError,
)
from qwen_operator import names
from qwen_operator.devices import is_offered
from qwen_operator.errors import InvalidSpecError, NoGpuFitsError
from qwen_operator.node_facts import NodeFacts
from qwen_operator.pod_defaults import NO_DEFAULTS, PodDefaults
from qwen_operator.spec import QwenDeploymentSpec
from qwen_operator.spec_plan import Planned, plan_spec

Json = Mapping[str, Any]
logger = logging.getLogger(__name__)
TEMPLATE_EPOCH = 1  # raise it only to make every pod restart with a template of this version

_REASONS: Mapping[type[PlanningError], str] = {
    UnknownModelError: "UnknownModel",
    UnsupportedModelError: "UnsupportedModel",
    InvalidConfigError: "InvalidConfig",
    UnknownGpuError: "UnknownGPU",
    InvalidDemandError: "InvalidSetting",
    DoesNotFitError: "DoesNotFit",
}
_SPEC_FIELDS = {
    "max_model_len": "spec.context.maxModelLen",
    "block_size": "spec.engine.overrides.blockSize",
    "gpu_memory_utilization": "spec.engine.overrides.gpuMemoryUtilization",
    "max_num_seqs": "spec.engine.overrides.maxNumSeqs",
    "max_num_batched_tokens": "spec.engine.overrides.maxNumBatchedTokens",
    "num_gpu_blocks_override": "spec.engine.overrides.numGpuBlocksOverride",
    "dtype": "spec.engine.overrides.dtype",
    "swap_space": "spec.engine.overrides.swapSpaceGiB",
    "kv_cache_dtype": "spec.engine.overrides.kvCacheDtype",
    "quantization": "spec.engine.overrides.quantization",
    "tensor_parallel_size": "spec.engine.overrides.tensorParallelSize",
    "engine_version": "spec.engine.version",
    "model": "spec.model.id",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, the pod template made from it, and the meaning of the spec that led to both."""

    plan: Json
    template: Json
    meaning: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan: a CamelCase reason and a sentence."""

    reason: str
    message: str


def decide(
    spec: QwenDeploymentSpec,
    nodes: Sequence[NodeFacts],
    live: Json | None,
    *,
    image: str,
    build_template: Callable[[Planned], Json],
    defaults: PodDefaults = NO_DEFAULTS,
) -> Decision | Refusal:
    """Keep the live Deployment's decision while it holds; else plan anew.

    Args:
        live: the Deployment that this QwenDeployment owns, if there is one.
        image: the engine image that new pods get.
        build_template: makes the pod template of a plan.
        defaults: what the template has besides, for all QwenDeployments.
    """
    means = {"spec": spec.meaning(), "image": image, "epoch": TEMPLATE_EPOCH}
    meaning = names.digest({**means, **defaults.meaning()})
    if (kept := recorded(live)) and kept.meaning == meaning and _holds(kept, nodes, live):
        return kept
    try:
        planned = plan_spec(spec, nodes)
    except (PlanningError, InvalidSpecError, NoGpuFitsError) as error:
        return refusal_of(error)
    except Exception as error:  # a fault of ours must not end the operator for everybody else
        logger.exception("planning %s failed", spec.model.id)
        return Refusal(
            "InternalError",
            f"planning failed unexpectedly ({type(error).__name__}: {error}); the operator's log "
            "has the details: please report it with this spec",
        )
    return Decision(planned.plan, build_template(planned), meaning)


def recorded(live: Json | None) -> Decision | None:
    """Read the decision that a Deployment carries; None where it carries none that can be read."""
    notes = ((live or {}).get("metadata") or {}).get("annotations") or {}
    try:
        record = json.loads(notes[names.DECISION_ANNOTATION])
        found = Decision(record["plan"], record["template"], notes[names.MEANING_ANNOTATION])
        is_sound = found.plan["device"]["kind"] and found.template["spec"]["containers"]
    except (KeyError, TypeError, ValueError):
        return None
    return found if is_sound else None


def to_annotations(decision: Decision) -> dict[str, str]:
    """Write a decision as the annotations that `recorded` reads."""
    record = {"plan": decision.plan, "template": decision.template}
    return {
        names.MEANING_ANNOTATION: decision.meaning,
        names.DECISION_ANNOTATION: json.dumps(record, sort_keys=True, separators=(",", ":")),
    }


def _holds(kept: Decision, nodes: Sequence[NodeFacts], live: Json | None) -> bool:
    """Say whether a recorded decision can still be served.

    A product that left the cluster's labels counts as gone only when no pod serves from it: labels
    vanish for moments, whenever gpu-feature-discovery restarts.
    """
    selector = kept.template["spec"].get("nodeSelector") or {}
    ready = ((live or {}).get("status") or {}).get("readyReplicas") or 0
    return ready > 0 or is_offered(selector, nodes)


def refusal_of(error: PlanningError | InvalidSpecError | NoGpuFitsError) -> Refusal:
    """Return the refusal that a planning error means, in the words of the spec's fields."""
    if isinstance(error, InvalidSpecError):
        return Refusal("InvalidSpec", str(error))
    if isinstance(error, NoGpuFitsError):
        return Refusal(_REASONS[DoesNotFitError], str(error))
    return Refusal(_REASONS.get(type(error), "NotPlanned"), _message(error))


def _message(error: PlanningError) -> str:
    if isinstance(error, InvalidDemandError) and error.field in _SPEC_FIELDS:
        return str(error).replace(error.field, _SPEC_FIELDS[error.field], 1)
    return str(error)
