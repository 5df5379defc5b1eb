"""QwenDeploymentSpec: the user's wishes, parsed and defaulted.

Called by `reconcile`. The API server has checked the same rules at admission; this is the second
line, for objects older than a rule, and the place of the defaults that tests rely on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from qwen_operator.errors import InvalidSpecError
from qwen_operator.grace import SHORTEST_SECONDS
from qwen_operator.spec_autoscaling import AutoscalingSpec, parse_autoscaling
from qwen_operator.spec_fields import parse_integer, parse_object, prune
from qwen_operator.spec_guards import GuardsSpec, parse_guards

Json = Mapping[str, Any]
_NOT_OF_PODS = ("service", "replicas", "autoscaling", "guards")
_GRACE = "terminationGracePeriodSeconds"
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model's files come from.

    Attributes:
        place: the hub id, the claim's name, or the node's folder.
        folder: below the claim's root; empty otherwise.
    """

    scheme: Literal["hf", "pvc", "file"]
    place: str
    folder: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """spec.model."""

    id: str
    source: ModelSource
    revision: str | None = None
    token_secret: str | None = None
    token_key: str = "token"
    cache_claim: str | None = None
    config: Json | None = None


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """spec.gpu; count 0 means CPU."""

    count: int = 1
    product: str | None = None
    memory_mib: int | None = None
    resource_name: str = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Overrides:
    """spec.engine.overrides; None means planned."""

    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    num_gpu_blocks_override: int | None = None
    swap_space_gib: float | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """spec.engine. Quantities stay as written: the API server knows their grammar best.

    Attributes:
        runtime: VLLM, or None for our own engine.
        version: the release of vLLM; None where nothing says it.
    """

    runtime: str | None = None
    version: str | None = None
    image: str | None = None
    extra_args: tuple[str, ...] = ()
    env: tuple[Json, ...] = ()
    limits: Json = field(default_factory=dict)
    requests: Json = field(default_factory=dict)
    overrides: Overrides = Overrides()

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM serves the model instead of our own engine."""
        return self.runtime == "VLLM"


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """spec.service.inferencePool, where it is enabled; a picker of None goes by the name."""

    picker: str | None = None
    port: int = 9002


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """spec.service."""

    type: str = "ClusterIP"
    port: int = 8000
    pool: PoolSpec | None = PoolSpec()


@dataclass(frozen=True, slots=True)
class QwenDeploymentSpec:
    """A whole spec. `template` is the pod overlay, copied as written."""

    model: ModelSpec
    gpu: GpuSpec = GpuSpec()
    engine: EngineSpec = EngineSpec()
    service: ServiceSpec = ServiceSpec()
    max_model_len: int | None = None
    replicas: int = 1
    autoscaling: AutoscalingSpec | None = None
    guards: GuardsSpec = field(default_factory=GuardsSpec)
    template: Json = field(default_factory=dict)

    @property
    def grace_seconds(self) -> int | None:
        """Seconds that a pod may take to end; None means planned."""
        found: int | None = self.template.get(_GRACE)
        return found

    def meaning(self) -> dict[str, Any]:
        """Return what decides how pods look, without what is unset.

        Unset fields are left out so that a field added by a later version does not change the
        meaning of specs that do not use it.
        """
        whole = {k: v for k, v in asdict(self).items() if k not in _NOT_OF_PODS}
        pruned = prune(whole)
        return pruned if isinstance(pruned, dict) else {}


def parse_spec(spec: Json) -> QwenDeploymentSpec:
    """Read a QwenDeployment's spec.

    Raises:
        InvalidSpecError: a field is missing or cannot be meant.
    """
    engine, template = parse_object(spec, "engine"), parse_object(spec, "template")
    parse_integer(template, f"template.{_GRACE}", least=SHORTEST_SECONDS)
    parsed = QwenDeploymentSpec(
        model=_parse_model(parse_object(spec, "model")),
        gpu=_parse_gpu(parse_object(spec, "gpu")),
        engine=_parse_engine(engine),
        service=_parse_service(parse_object(spec, "service")),
        max_model_len=parse_integer(parse_object(spec, "context"), "context.maxModelLen", least=1),
        replicas=parse_integer(spec, "replicas", least=0, default=1) or 0,
        autoscaling=parse_autoscaling(parse_object(spec, "autoscaling")),
        guards=parse_guards(spec),
        template=dict(template),
    )
    _check_blocks(parsed)
    _check_gpus(parsed)
    return parsed


def parse_source(model_id: str, uri: str | None) -> ModelSource:
    """Read spec.model.uri; the hub, under the model's own id, is the default.

    Raises:
        InvalidSpecError: an unknown scheme, or a place that cannot be.
    """
    scheme, _, rest = (uri or f"hf://{model_id}").partition("://")
    if ".." in rest.split("/"):
        raise InvalidSpecError("spec.model.uri", f'{uri!r} must not contain ".."')
    if scheme == "hf" and rest:
        return ModelSource("hf", rest)
    if scheme == "pvc":
        claim, _, folder = rest.partition("/")
        if _DNS_NAME.fullmatch(claim):
            return ModelSource("pvc", claim, folder.strip("/"))
    if scheme == "file" and rest.startswith("/") and rest.strip("/"):
        return ModelSource("file", "/" + rest.strip("/"))
    raise InvalidSpecError(
        "spec.model.uri", f"{uri!r}: use hf://OWNER/NAME, pvc://CLAIM/FOLDER or file:///FOLDER"
    )


def _parse_model(model: Json) -> ModelSpec:
    model_id = model.get("id")
    if not isinstance(model_id, str) or not model_id:
        raise InvalidSpecError("spec.model.id", "name the model, such as Qwen/Qwen3-0.6B")
    token, cache = parse_object(model, "model.tokenSecretRef"), parse_object(model, "model.cache")
    return ModelSpec(
        id=model_id,
        source=parse_source(model_id, model.get("uri")),
        revision=model.get("revision"),
        token_secret=token.get("name"),
        token_key=token.get("key", "token"),
        cache_claim=cache.get("persistentVolumeClaim"),
        config=model.get("config"),
    )


def _parse_gpu(gpu: Json) -> GpuSpec:
    count = parse_integer(gpu, "gpu.count", least=0, default=1)
    if str(gpu.get("product", "")).endswith("-MIG-INVALID"):
        raise InvalidSpecError(
            "spec.gpu.product",
            "names GPUs whose MIG layout is not uniform, which cannot be planned; make it uniform, "
            "or name other GPUs",
        )
    return GpuSpec(
        count=1 if count is None else count,
        product=gpu.get("product"),
        memory_mib=parse_integer(gpu, "gpu.memoryMiB", least=1),
        resource_name=gpu.get("resourceName", GpuSpec().resource_name),
    )


def _parse_engine(engine: Json) -> EngineSpec:
    resources = parse_object(engine, "engine.resources")
    overrides = parse_object(engine, "engine.overrides")
    runtime = engine.get("runtime", "Qwen")
    if runtime not in ("Qwen", "VLLM"):
        raise InvalidSpecError("spec.engine.runtime", f"{runtime!r} must be Qwen or VLLM")
    return EngineSpec(
        runtime=None if runtime == "Qwen" else runtime,
        version=engine.get("version"),
        image=engine.get("image"),
        extra_args=tuple(engine.get("extraArgs", ())),
        env=tuple(engine.get("env", ())),
        limits=dict(parse_object(resources, "engine.resources.limits")),
        requests=dict(parse_object(resources, "engine.resources.requests")),
        overrides=Overrides(
            block_size=overrides.get("blockSize"),
            gpu_memory_utilization=overrides.get("gpuMemoryUtilization"),
            max_num_seqs=overrides.get("maxNumSeqs"),
            max_num_batched_tokens=overrides.get("maxNumBatchedTokens"),
            dtype=overrides.get("dtype"),
            num_gpu_blocks_override=overrides.get("numGpuBlocksOverride"),
            swap_space_gib=overrides.get("swapSpaceGiB"),
            kv_cache_dtype=overrides.get("kvCacheDtype"),
            quantization=overrides.get("quantization"),
            tensor_parallel_size=overrides.get("tensorParallelSize"),
        ),
    )


def _check_blocks(spec: QwenDeploymentSpec) -> None:
    blocks, size = spec.engine.overrides.num_gpu_blocks_override, spec.engine.overrides.block_size
    longest = spec.max_model_len
    if blocks is None or size is None or longest is None or blocks * size >= longest:
        return
    raise InvalidSpecError(
        "spec.engine.overrides.numGpuBlocksOverride",
        "that many blocks of blockSize tokens hold no request of spec.context.maxModelLen tokens; "
        "leave it out, or raise it",
    )


def _check_gpus(spec: QwenDeploymentSpec) -> None:
    if spec.gpu.count > 1 and not spec.engine.is_vllm:
        raise InvalidSpecError(
            "spec.gpu.count",
            f"{spec.gpu.count}: must be 0 (CPU) or 1 for our own engine; for more throughput raise "
            "spec.replicas, or set spec.engine.runtime: VLLM, which runs one model on several GPUs",
        )


def _parse_service(service: Json) -> ServiceSpec:
    default = ServiceSpec()
    port = parse_integer(service, "service.port", least=1, default=default.port)
    pool = _parse_pool(parse_object(service, "service.inferencePool"))
    return ServiceSpec(service.get("type", default.type), port or default.port, pool)


def _parse_pool(pool: Json) -> PoolSpec | None:
    if pool.get("enabled", True) is False:
        return None
    default = PoolSpec()
    port = parse_integer(pool, "service.inferencePool.pickerPort", least=1, default=default.port)
    return PoolSpec(pool.get("pickerName"), port or default.port)
