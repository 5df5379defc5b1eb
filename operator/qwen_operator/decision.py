"""The decision behind a Deployment: the plan, and the pod template made from it.

Called by `reconcile`; pure. A decision is recorded in the Deployment's annotations, beside the
pods it made, and kept as long as the spec means the same: neither an operator upgrade, nor nodes
that come and go, nor a scale ever restarts pods that serve (cases K8-057, K8-059).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidConfigError,
    InvalidDemandError,
    ModelShape,
    Plan,
    PlanningError,
    UnknownGpuError,
    UnknownModelError,
    UnsupportedModelError,
    cpu_device,
    find_model,
    format_bytes,
    make_plan,
    parse_bytes,
    parse_model_config,
    plan_to_dict,
    recommend_cpu_memory,
)
from qwen_operator import names
from qwen_operator.devices import (
    PRODUCT_LABEL,
    NodeFacts,
    choose_gpu,
    host_memory_beside,
    is_offered,
)
from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec import QwenDeploymentSpec

Json = Mapping[str, Any]
logger = logging.getLogger(__name__)
TEMPLATE_EPOCH = 1  # raise it only to make every pod restart with a template of this version

_MOST_LAYERS = 1000
_LARGEST_SIZE = 2**31 - 1

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
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan as status.plan holds it, and what the pod template needs beyond it.

    Attributes:
        memory_bytes: the container's memory limit on a CPU; None on a GPU.
    """

    plan: Json
    node_selector: Json
    memory_bytes: int | None = None


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
) -> Decision | Refusal:
    """Keep the live Deployment's decision while it holds; else plan anew.

    Args:
        live: the Deployment that this QwenDeployment owns, if there is one.
        image: the engine image that new pods get.
        build_template: makes the pod template of a plan.
    """
    meaning = names.digest({"spec": spec.meaning(), "image": image, "epoch": TEMPLATE_EPOCH})
    if (kept := recorded(live)) and kept.meaning == meaning and _holds(kept, nodes, live):
        return kept
    try:
        planned = plan(spec, nodes)
    except PlanningError as error:
        return Refusal(_REASONS.get(type(error), "NotPlanned"), _message(error))
    except InvalidSpecError as error:
        return Refusal("InvalidSpec", str(error))
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


def plan(spec: QwenDeploymentSpec, nodes: Sequence[NodeFacts]) -> Planned:
    """Plan a spec for its device.

    Raises:
        PlanningError: no plan can be made.
        InvalidSpecError: a quantity that cannot be.
    """
    model = _model(spec)
    demands = _demands(spec)
    if spec.gpu.count == 0:
        memory, source = _cpu_memory(spec, model, demands)
        made = make_plan(model, cpu_device(memory, source=source), demands)
        return Planned(_to_json(made), {}, memory)
    choice = choose_gpu(spec.gpu, nodes)
    host = _host_memory(spec, host_memory_beside(choice, spec.gpu, nodes))
    made = make_plan(model, replace(choice.device, host_memory_bytes=host), demands)
    return Planned(_to_json(made, choice.warnings), choice.node_selector)


def _to_json(made: Plan, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    found = plan_to_dict(made)
    found["warnings"] = [*found["warnings"], *warnings]
    return {key: value for key, value in found.items() if value != []}


def _model(spec: QwenDeploymentSpec) -> ModelShape:
    config = spec.model.config
    if config is None:
        return find_model(spec.model.id)
    _check_sizes(config)
    text = config.get("text_config")
    _check_sizes(text if isinstance(text, Mapping) else {})
    return parse_model_config(config, model_id=spec.model.id)


def _check_sizes(config: Json) -> None:
    """Refuse numbers no model has: planning walks the layers, and must not walk for ever."""
    for key, value in config.items():
        most = _MOST_LAYERS if key == "num_hidden_layers" else _LARGEST_SIZE
        if isinstance(value, int | float) and abs(value) > most:
            raise InvalidSpecError(f"spec.model.config.{key}", f"{value} is above {most}")


def _demands(spec: QwenDeploymentSpec) -> Demands:
    chosen = spec.engine.overrides
    return Demands(
        max_model_len=spec.max_model_len,
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=chosen.max_num_batched_tokens,
        block_size=chosen.block_size,
        gpu_memory_utilization=chosen.gpu_memory_utilization,
        dtype=chosen.dtype or "auto",
        num_gpu_blocks_override=chosen.num_gpu_blocks_override,
        swap_space=chosen.swap_space_gib,
    )


def _host_memory(spec: QwenDeploymentSpec, share: int | None) -> int | None:
    """Return what a pod beside a GPU may use: what the user set, else its share of the node."""
    for kind, quantities in (("limits", spec.engine.limits), ("requests", spec.engine.requests)):
        if (given := quantities.get("memory")) is not None:
            return _parse_memory(given, f"spec.engine.resources.{kind}.memory")
    return share


def _parse_memory(quantity: str | int | float, field: str) -> int:
    try:
        return parse_bytes(quantity)
    except ValueError as error:
        raise InvalidSpecError(field, str(error)) from error


def _cpu_memory(spec: QwenDeploymentSpec, model: ModelShape, demands: Demands) -> tuple[int, str]:
    limit = spec.engine.limits.get("memory")
    if limit is None:
        memory = recommend_cpu_memory(model, demands)
        return memory, (
            f"{format_bytes(memory)} chosen by the operator, room for four requests of full "
            "length; spec.engine.resources.limits.memory sets another limit"
        )
    memory = _parse_memory(limit, "spec.engine.resources.limits.memory")
    return memory, f"spec.engine.resources.limits.memory={limit}"


def _holds(kept: Decision, nodes: Sequence[NodeFacts], live: Json | None) -> bool:
    """Say whether a recorded decision can still be served.

    A product that left the cluster's labels counts as gone only when no pod serves from it: labels
    vanish for moments, whenever gpu-feature-discovery restarts.
    """
    product = (kept.template["spec"].get("nodeSelector") or {}).get(PRODUCT_LABEL)
    ready = ((live or {}).get("status") or {}).get("readyReplicas") or 0
    return product is None or ready > 0 or is_offered(product, nodes)


def _message(error: PlanningError) -> str:
    if isinstance(error, InvalidDemandError) and error.field in _SPEC_FIELDS:
        return str(error).replace(error.field, _SPEC_FIELDS[error.field], 1)
    return str(error)
