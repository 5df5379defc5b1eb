"""From a spec and the cluster's nodes to a plan: the model, the demands, the device that fits.

Called by `decision`, and by `kubectl qwen explain`, which therefore says what the operator would.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_engine.planning import (
    Demands,
    DoesNotFitError,
    InvalidDemandError,
    ModelShape,
    Plan,
    PlanningError,
    UnsupportedModelError,
    cpu_device,
    find_model,
    format_bytes,
    make_plan,
    parse_bytes,
    parse_model_config,
    plan_to_dict,
    read_model_facts,
    recommend_cpu_memory,
)
from qwen_engine.planning.quantities import MIB
from qwen_operator.devices import Candidate, find_candidates
from qwen_operator.errors import InvalidSpecError, NoGpuFitsError
from qwen_operator.grace import plan_grace
from qwen_operator.node_facts import NodeFacts
from qwen_operator.runtime import check_runtime, with_release
from qwen_operator.spec import QwenDeploymentSpec
from qwen_operator.spec_warnings import warn

Json = Mapping[str, Any]
Misfit = DoesNotFitError | InvalidDemandError

_MOST_LAYERS = 1000
_LARGEST_SIZE = 2**31 - 1
# Below this a larger GPU is worth taking: what people run on the smallest cards, 12 GB.
_GOOD_CONTEXT = 8192


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
class _Attempt:
    """A candidate and its plan, or why the model does not fit there."""

    candidate: Candidate
    outcome: Plan | Misfit

    @property
    def name(self) -> str:
        selector = self.candidate.node_selector
        return next(iter(selector.values()), self.candidate.device.product)

    @property
    def context(self) -> int:
        return self.outcome.max_model_len if isinstance(self.outcome, Plan) else 0


def plan_spec(spec: QwenDeploymentSpec, nodes: Sequence[NodeFacts]) -> Planned:
    """Plan a spec for its device: of several, the smallest that the model fits on.

    Raises:
        PlanningError: no plan can be made.
        InvalidSpecError: a quantity that cannot be.
        NoGpuFitsError: the cluster has several kinds of GPU, and none is large enough.
    """
    spec = with_release(spec, spec.engine.image)
    check_runtime(spec)
    model = _model(spec)
    demands = _demands(spec)
    if spec.gpu.count == 0:
        memory, source = _cpu_memory(spec, model, demands)
        made = make_plan(model, cpu_device(memory, source=source), demands)
        return Planned(_to_json(made, spec), {}, memory)
    selector = spec.template.get("nodeSelector") or {}
    candidates = find_candidates(spec.gpu, nodes, selector)
    attempts = [_attempt(spec, model, demands, candidate) for candidate in candidates]
    chosen = _choose(attempts, min(_GOOD_CONTEXT, demands.max_model_len or _GOOD_CONTEXT))
    assert isinstance(chosen.outcome, Plan), "only what fits is chosen"
    warnings = warn(spec, model, gpus=chosen.candidate.gpus)
    plan = _to_json(chosen.outcome, spec, (*chosen.candidate.warnings, *warnings))
    notes = [_several(attempts, chosen)] if len(attempts) > 1 else []
    size = chosen.outcome.tensor_parallel_size
    if size < spec.gpu.count and demands.tensor_parallel_size is None:
        notes.append(_fewer(size, spec.gpu.count))
    if notes:
        plan["notes"] = notes
    if len(attempts) > 1:
        plan["pools"] = [_pool_json(attempt, chosen) for attempt in attempts]
    return Planned(plan, chosen.candidate.node_selector)


def _attempt(
    spec: QwenDeploymentSpec, model: ModelShape, demands: Demands, candidate: Candidate
) -> _Attempt:
    host = _host_memory(spec, candidate.device.host_memory_bytes)
    device = replace(candidate.device, host_memory_bytes=host)
    try:
        return _Attempt(candidate, make_plan(model, device, demands))
    except (DoesNotFitError, InvalidDemandError) as error:
        return _Attempt(candidate, error)


def _choose(attempts: Sequence[_Attempt], good_context: int) -> _Attempt:
    """Return the first with a good context, else the one with the longest."""
    fitting = [attempt for attempt in attempts if isinstance(attempt.outcome, Plan)]
    if fitting:
        good = [attempt for attempt in fitting if attempt.context >= good_context]
        return good[0] if good else max(fitting, key=lambda attempt: attempt.context)
    largest = max(attempts, key=lambda attempt: attempt.candidate.device.memory_bytes)
    assert not isinstance(largest.outcome, Plan), "nothing fits"
    if len(attempts) == 1 or isinstance(largest.outcome, InvalidDemandError):
        raise largest.outcome
    sizes = ", ".join(f"{a.name} ({_mib(a):,} MiB)" for a in attempts)
    raise NoGpuFitsError(
        f"none of the {len(attempts)} kinds of GPU in the cluster is large enough ({sizes}). On "
        f"the largest: {largest.outcome}"
    )


def _several(attempts: Sequence[_Attempt], chosen: _Attempt) -> str:
    """Say which kinds of GPU there are and why this one was taken."""
    others = [a for a in attempts if a is not chosen]
    is_first = chosen is next(a for a in attempts if a.context)
    why = "the smallest that the model fits on" if is_first else "smaller ones leave less context"
    fitting = [f"{a.name} ({a.context:,} tokens)" for a in others if a.context]
    small = [a.name for a in others if not a.context]
    parts = [
        f"nodes offer {len(attempts)} kinds of GPU, planned for {chosen.name} ({chosen.context:,} "
        f"tokens of context): {why}"
    ]
    parts += [f"spec.gpu.product chooses another: {', '.join(fitting)}"] if fitting else []
    parts += [f"too small: {', '.join(small)}"] if small else []
    return "; ".join(parts)


def _fewer(size: int, count: int) -> str:
    return (
        f"each pod asks for {size} of the {count} GPUs that spec.gpu.count allows: these are the "
        "fewest that the model fits on, and more pods serve more than larger ones; "
        "spec.engine.overrides.tensorParallelSize fixes another number"
    )


def _pool_json(attempt: _Attempt, chosen: _Attempt) -> dict[str, Any]:
    found: dict[str, Any] = {
        "product": attempt.name,
        "memoryMiB": _mib(attempt),
        "gpus": attempt.candidate.gpus,
        "fits": isinstance(attempt.outcome, Plan),
        "chosen": attempt is chosen,
    }
    if isinstance(attempt.outcome, Plan):
        return {**found, "maxModelLen": attempt.context, "tokens": attempt.outcome.kv_tokens}
    return {**found, "message": str(attempt.outcome)}


def _mib(attempt: _Attempt) -> int:
    return attempt.candidate.device.memory_bytes // MIB


def _to_json(
    made: Plan, spec: QwenDeploymentSpec, warnings: tuple[str, ...] = ()
) -> dict[str, Any]:
    found = plan_to_dict(made)
    found["warnings"] = [*found["warnings"], *warnings]
    grace = plan_grace(made, spec.grace_seconds)
    found["grace"] = {
        "seconds": grace.seconds,
        "drainSeconds": grace.drain_seconds,
        "how": grace.how,
    }
    return {key: value for key, value in found.items() if value != []}


def _model(spec: QwenDeploymentSpec) -> ModelShape:
    config = spec.model.config
    if config is None:
        return find_model(spec.model.id)
    _check_sizes(config)
    text = config.get("text_config")
    _check_sizes(text if isinstance(text, Mapping) else {})
    if spec.engine.is_vllm:
        return read_model_facts(config, model_id=spec.model.id)
    try:
        return parse_model_config(config, model_id=spec.model.id)
    except UnsupportedModelError as error:
        raise _way_to_vllm(error, config, spec.model.id) from error


def _way_to_vllm(error: UnsupportedModelError, config: Json, model_id: str) -> PlanningError:
    """Return the error, with the other runtime as the way out where its plan can be made."""
    try:
        read_model_facts(config, model_id=model_id)
    except PlanningError:
        return error
    return UnsupportedModelError(f"{error}; or set spec.engine.runtime: VLLM")


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
        kv_cache_dtype=chosen.kv_cache_dtype or "auto",
        quantization=chosen.quantization or "none",
        tensor_parallel_size=chosen.tensor_parallel_size,
        engine="vllm" if spec.engine.is_vllm else "qwen",
        engine_version=spec.engine.version,
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
