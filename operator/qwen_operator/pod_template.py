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
from qwen_operator.pod_resources import build_resources
from qwen_operator.spec import ModelSpec, QwenDeploymentSpec
from qwen_operator.spec_plan import Planned

Json = Mapping[str, Any]
_USER = 65532  # "nonroot", as in distroless images
_MODELS, _CACHE = "/models", "/cache"

# How long a pod may take to become ready: a base for the image's start, then every byte at rates
# that slow parts still reach: a spinning disk or small network volume, and a 160 Mbit/s line.
_START_SECONDS = 120
_VOLUME_BYTES_PER_SECOND = 50_000_000
_HUB_BYTES_PER_SECOND = 20_000_000

_DRAIN_SECONDS = 120  # running requests may finish after SIGTERM
_UNROUTE_SECONDS = 5  # kube-proxies and gateways stop sending before the engine stops listening
_EXIT_SECONDS = 10
_PROBE_SECONDS = 2


def build_pod_template(
    name: str, spec: QwenDeploymentSpec, planned: Planned, *, image: str
) -> dict[str, Any]:
    """Return the pod template of a planned QwenDeployment."""
    return {
        "metadata": {
            "labels": {
                **names.labels(name),
                names.MODEL_LABEL: names.label_value(spec.model.id),
                # engines that speak vLLM's metrics are found by this label (llm-d-router, EPP)
                "llm-d.ai/engine-type": "vllm",
            },
            "annotations": {
                names.MODEL_ANNOTATION: spec.model.id,
                names.ALLOWANCE_ANNOTATION: _allowance(spec.model, planned.plan)[1],
            },
        },
        "spec": _pod_spec(name, spec, planned, image),
    }


def startup_seconds(template: Json) -> int:
    """Return how long a pod of this template may take to become ready."""
    probe = template["spec"]["containers"][0]["startupProbe"]
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def engine_args(spec: QwenDeploymentSpec, plan: Json) -> list[str]:
    """Return the engine's command line: the model, the planned flags, then the user's own."""
    model = spec.model
    words = ["serve", _model_path(model), "--served-model-name", model.id]
    words += ["--host", "0.0.0.0", "--port", str(names.ENGINE_PORT)]
    if model.revision is not None:
        words += ["--revision", model.revision]
    for setting in plan["settings"]:
        words += [setting["flag"]] if setting["value"] == "true" else [
            setting["flag"], setting["value"]
        ]  # fmt: skip
    words += ["--shutdown-timeout", str(_DRAIN_SECONDS)]
    return [*words, *spec.engine.extra_args]


def _pod_spec(name: str, spec: QwenDeploymentSpec, planned: Planned, image: str) -> dict[str, Any]:
    overlay = spec.template
    tolerations = [*overlay.get("tolerations", ())]
    if spec.gpu.count > 0:
        # GPU nodes are often tainted with the resource's own name; who asks for it may run there
        own = {"key": spec.gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}
        tolerations += [own] if own not in tolerations else []
    wanted = {
        "nodeSelector": {**planned.node_selector, **overlay.get("nodeSelector", {})},
        "tolerations": tolerations,
        **{k: overlay.get(k) for k in ("affinity", "priorityClassName", "runtimeClassName")},
    }
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT=tcp://… (K8-039)
        "terminationGracePeriodSeconds": _UNROUTE_SECONDS + _DRAIN_SECONDS + _EXIT_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{key: value for key, value in wanted.items() if value},
        "containers": [_container(spec, planned, image)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, _model_volume(spec.model)],
    }


def _swap_bytes(plan: Json) -> int:
    return sum(line["bytes"] for line in plan.get("hostLedger", ()) if line["component"] == "swap")


def _container(spec: QwenDeploymentSpec, planned: Planned, image: str) -> dict[str, Any]:
    seconds, _ = _allowance(spec.model, planned.plan)
    return {
        "name": "engine",
        "image": image,
        "args": engine_args(spec, planned.plan),
        "env": _env(spec),
        "ports": [{"name": names.PORT_NAME, "containerPort": names.ENGINE_PORT}],
        "resources": build_resources(
            spec, planned.memory_bytes, swap_bytes=_swap_bytes(planned.plan)
        ),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, _model_mount(spec.model)],
        "startupProbe": _probe("/ready", _PROBE_SECONDS, -(-seconds // _PROBE_SECONDS)),
        "readinessProbe": _probe("/ready", 5, 3),
        "livenessProbe": _probe("/health", 10, 6),
        "lifecycle": {"preStop": {"sleep": {"seconds": _UNROUTE_SECONDS}}},
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


def _allowance(model: ModelSpec, plan: Json) -> tuple[int, str]:
    """Return the seconds a start may take, and the arithmetic."""
    num_bytes = int(plan["loadBytes"])
    seconds = _START_SECONDS + num_bytes // _VOLUME_BYTES_PER_SECOND
    how = f"{_START_SECONDS} s + {num_bytes} B at {_VOLUME_BYTES_PER_SECOND // 10**6} MB/s"
    if model.source.scheme == "hf":
        seconds += num_bytes // _HUB_BYTES_PER_SECOND
        how += f" + download at {_HUB_BYTES_PER_SECOND // 10**6} MB/s"
    return seconds, f"{seconds} s = {how}"


def _env(spec: QwenDeploymentSpec) -> list[Json]:
    env: list[Json] = [{"name": "HOME", "value": "/tmp"}]
    if spec.model.source.scheme == "hf":
        env.append({"name": "HF_HOME", "value": f"{_CACHE}/huggingface"})
    if spec.model.token_secret is not None:
        # not optional: a pod without its token would fail minutes later with 401 (K8-065)
        token = {"name": spec.model.token_secret, "key": spec.model.token_key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}})
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
