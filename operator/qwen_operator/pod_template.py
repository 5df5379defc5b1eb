"""The engine's pod: command line, volumes, probes and security. Pure: spec and plan → manifest.

Called by `resources`. The rendering must stay byte-identical for equal input: its hash decides
whether pods restart. Every pod meets the `restricted` pod security standard, but for file://
models, which need a folder of the node.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_operator import names
from qwen_operator.grace import UNROUTE_SECONDS
from qwen_operator.pod_defaults import NO_DEFAULTS, PodDefaults
from qwen_operator.pod_resources import SHARED_MEMORY_BYTES, build_resources
from qwen_operator.runtime import can_drain
from qwen_operator.spec import ModelSpec, QwenDeploymentSpec
from qwen_operator.spec_plan import Planned

Json = Mapping[str, Any]
_USER = 65532  # "nonroot", as in distroless images
_MODELS, _CACHE = "/models", "/cache"

# How long a pod may take to become ready: a base for the image's start, then every byte at rates
# that slow parts still reach: a spinning disk or small network volume, and a 160 Mbit/s line.
_START_SECONDS = 120
_VLLM_START_SECONDS = 600  # it also compiles the model and captures CUDA graphs
_VOLUME_BYTES_PER_SECOND = 50_000_000
_HUB_BYTES_PER_SECOND = 20_000_000

_PROBE_SECONDS = 2


def build_pod_template(
    name: str,
    spec: QwenDeploymentSpec,
    planned: Planned,
    *,
    image: str,
    defaults: PodDefaults = NO_DEFAULTS,
) -> dict[str, Any]:
    """Return the pod template of a planned QwenDeployment."""
    return {
        "metadata": {
            "labels": {
                **names.labels(name),
                names.MODEL_LABEL: names.label_value(spec.model.id),
                # engines that speak vLLM's metrics are found by this label (llm-d-router, EPP)
                "llm-d.ai/engine-type": "vllm",
                **({names.RUNTIME_LABEL: "vllm"} if spec.engine.is_vllm else {}),
            },
            "annotations": {
                names.MODEL_ANNOTATION: spec.model.id,
                names.ALLOWANCE_ANNOTATION: _allowance(spec, planned.plan)[1],
            },
        },
        "spec": _pod_spec(name, spec, planned, image, defaults),
    }


def startup_seconds(template: Json) -> int:
    """Return how long a pod of this template may take to become ready."""
    probe = template["spec"]["containers"][0]["startupProbe"]
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def engine_args(spec: QwenDeploymentSpec, plan: Json) -> list[str]:
    """Return the engine's command line: the model, the planned flags, then the user's own.

    Both engines take it: ours has vLLM's names, and what only one of them knows is not planned for
    the other.
    """
    model = spec.model
    words = ["serve", _model_path(model), "--served-model-name", model.id]
    words += ["--host", "0.0.0.0", "--port", str(names.ENGINE_PORT)]
    if model.revision is not None:
        words += ["--revision", model.revision]
    for setting in plan["settings"]:
        words += [setting["flag"]] if setting["value"] == "true" else [
            setting["flag"], setting["value"]
        ]  # fmt: skip
    if can_drain(spec):
        words += ["--shutdown-timeout", str(plan["grace"]["drainSeconds"])]
    return [*words, *spec.engine.extra_args]


def _pod_spec(
    name: str, spec: QwenDeploymentSpec, planned: Planned, image: str, defaults: PodDefaults
) -> dict[str, Any]:
    overlay = spec.template
    tolerations = [*overlay.get("tolerations", ())]
    if spec.gpu.count > 0:
        # GPU nodes are often tainted with the resource's own name; who asks for it may run there
        own = {"key": spec.gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}
        tolerations += [own] if own not in tolerations else []
    wanted = {
        "nodeSelector": {**planned.node_selector, **overlay.get("nodeSelector", {})},
        "tolerations": tolerations,
        "imagePullSecrets": overlay.get(
            "imagePullSecrets", [{"name": name} for name in defaults.pull_secrets]
        ),
        **{k: overlay.get(k) for k in ("affinity", "priorityClassName", "runtimeClassName")},
    }
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT=tcp://… (K8-039)
        "terminationGracePeriodSeconds": planned.plan["grace"]["seconds"],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{key: value for key, value in wanted.items() if value},
        "containers": [_container(spec, planned, image, defaults)],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            _model_volume(spec.model),
            *([_SHARED_MEMORY] if _num_gpus(planned.plan) > 1 else []),
        ],
    }


# where the processes of several GPUs meet; a container's own /dev/shm has 64 MiB
_SHARED_MEMORY = {
    "name": "shm",
    "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_BYTES // 2**30}Gi"},
}


def _num_gpus(plan: Json) -> int:
    return int(plan["device"]["count"])


def _swap_bytes(plan: Json) -> int:
    return sum(line["bytes"] for line in plan.get("hostLedger", ()) if line["component"] == "swap")


def _container(
    spec: QwenDeploymentSpec, planned: Planned, image: str, defaults: PodDefaults
) -> dict[str, Any]:
    seconds, _ = _allowance(spec, planned.plan)
    num_gpus = _num_gpus(planned.plan)
    ready = "/health" if spec.engine.is_vllm else "/ready"  # vLLM listens once it has loaded
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, _model_mount(spec.model)]
    mounts += [{"name": "shm", "mountPath": "/dev/shm"}] if num_gpus > 1 else []
    return {
        "name": "engine",
        "image": image,
        # its images start in different ways, by release
        **({"command": ["vllm"]} if spec.engine.is_vllm else {}),
        "args": engine_args(spec, planned.plan),
        "env": _env(spec, defaults),
        "ports": [{"name": names.PORT_NAME, "containerPort": names.ENGINE_PORT}],
        "resources": build_resources(
            spec,
            planned.memory_bytes,
            swap_bytes=_swap_bytes(planned.plan),
            num_gpus=num_gpus,
        ),
        "volumeMounts": mounts,
        "startupProbe": _probe(ready, _PROBE_SECONDS, -(-seconds // _PROBE_SECONDS)),
        "readinessProbe": _probe(ready, 5, 3),
        "livenessProbe": _probe("/health", 10, 6),
        "lifecycle": {"preStop": {"sleep": {"seconds": UNROUTE_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _allowance(spec: QwenDeploymentSpec, plan: Json) -> tuple[int, str]:
    """Return the seconds a start may take, and the arithmetic."""
    num_bytes = int(plan["loadBytes"])
    base = _VLLM_START_SECONDS if spec.engine.is_vllm else _START_SECONDS
    seconds = base + num_bytes // _VOLUME_BYTES_PER_SECOND
    how = f"{base} s + {num_bytes} B at {_VOLUME_BYTES_PER_SECOND // 10**6} MB/s"
    if spec.model.source.scheme == "hf":
        seconds += num_bytes // _HUB_BYTES_PER_SECOND
        how += f" + download at {_HUB_BYTES_PER_SECOND // 10**6} MB/s"
    return seconds, f"{seconds} s = {how}"


def _env(spec: QwenDeploymentSpec, defaults: PodDefaults) -> list[Json]:
    env: list[Json] = [{"name": "HOME", "value": "/tmp"}]
    if spec.engine.is_vllm:
        # torch asks for the user's name, and dies where the image has none for the number
        # (vllm-project/vllm issue 44548); and what a cluster serves is nobody else's business
        env.append({"name": "USER", "value": "vllm"})
        env.append({"name": "VLLM_NO_USAGE_STATS", "value": "1"})
    if spec.model.source.scheme == "hf":
        env.append({"name": "HF_HOME", "value": f"{_CACHE}/huggingface"})
    if spec.model.token_secret is not None:
        # not optional: a pod without its token would fail minutes later with 401 (K8-065)
        token = {"name": spec.model.token_secret, "key": spec.model.token_key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}})
    given: list[Json] = [
        {"name": name, "value": value} for name, value in sorted(defaults.env.items())
    ]
    env = [item for item in env if item["name"] not in defaults.env] + given
    chosen = {item["name"] for item in spec.engine.env}
    return [*(item for item in env if item["name"] not in chosen), *spec.engine.env]


def _model_path(model: ModelSpec) -> str:
    source = model.source
    if source.scheme == "hf":
        return source.place
    return f"{_MODELS}/{source.folder}".rstrip("/") if source.scheme == "pvc" else _MODELS


def _model_volume(model: ModelSpec) -> dict[str, Any]:
    source = model.source
    if source.scheme == "pvc":  # the given claim itself, read-only; no second one (K8-027)
        claim = {"claimName": source.place, "readOnly": True}
        return {"name": "model", "persistentVolumeClaim": claim}
    if source.scheme == "file":
        return {"name": "model", "hostPath": {"path": source.place, "type": "Directory"}}
    if model.cache_claim is not None:
        return {"name": "cache", "persistentVolumeClaim": {"claimName": model.cache_claim}}
    return {"name": "cache", "emptyDir": {}}


def _model_mount(model: ModelSpec) -> dict[str, Any]:
    if model.source.scheme == "hf":
        return {"name": "cache", "mountPath": _CACHE}
    return {"name": "model", "mountPath": _MODELS, "readOnly": True}
