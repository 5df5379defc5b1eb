"""States of a cluster, as small as the operator's judgement needs them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from qwen_operator import names
from qwen_operator.node_facts import NodeFacts
from qwen_operator.observed import Observed
from qwen_operator.reconcile import Outcome, reconcile

Json = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
IMAGE = "qwen-engine:test"
UID = "uid-1"


def resource(
    spec: Mapping[str, Any] | None = None, *, generation: int = 1, status: Json | None = None
) -> Json:
    """A QwenDeployment `chat`; by default Qwen3-0.6B on a CPU of 6 GiB."""
    default = {
        "model": {"id": "Qwen/Qwen3-0.6B"},
        "gpu": {"count": 0},
        "engine": {"resources": {"limits": {"memory": "6Gi"}}},
        "replicas": 1,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "chat",
            "namespace": "ns",
            "uid": UID,
            "generation": generation,
        },
        "spec": default if spec is None else dict(spec),
        **({"status": status} if status is not None else {}),
    }


def gpu_spec(**changes: Any) -> Json:
    """A spec for Qwen3-8B on whatever GPU there is."""
    return {"model": {"id": "Qwen/Qwen3-8B"}, "replicas": 1, **changes}


def l4(name: str = "l4-0", **labels: str) -> NodeFacts:
    """A node with one labelled L4."""
    found = {
        "nvidia.com/gpu.product": "NVIDIA-L4",
        "nvidia.com/gpu.memory": "23034",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "9",
        **labels,
    }
    return NodeFacts(name, found, {"nvidia.com/gpu": 1})


def with_memory(node: NodeFacts, gib: int) -> NodeFacts:
    """The node, saying how much memory its pods may have."""
    return dataclasses.replace(node, memory_bytes=gib * 2**30)


def h100(name: str = "h100-0") -> NodeFacts:
    """A node with eight labelled H100s."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    return NodeFacts(name, labels, {"nvidia.com/gpu": 8})


def look(
    about: Json, observed: Observed | None = None, *, now: str = NOW, image: str = IMAGE
) -> Outcome:
    """Reconcile a QwenDeployment that is not being deleted."""
    outcome = reconcile(about, observed or Observed(), engine_image=image, now=now)
    assert outcome is not None
    return outcome


def carry_out(outcome: Outcome, observed: Observed | None = None) -> Observed:
    """Return the observed state after an outcome's manifests were applied."""
    before = observed or Observed()
    live = {
        "Deployment": before.deployment,
        "Service": before.service,
        "ServiceAccount": before.service_account,
        "HorizontalPodAutoscaler": before.autoscaler,
        "ScaledObject": before.scaled_object,
        "PodDisruptionBudget": before.budget,
        "NetworkPolicy": before.network_policy,
    }
    live |= {manifest["kind"]: copy.deepcopy(dict(manifest)) for manifest in outcome.apply}
    return dataclasses.replace(
        before,
        deployment=live["Deployment"],
        service=live["Service"],
        service_account=live["ServiceAccount"],
        autoscaler=live["HorizontalPodAutoscaler"],
        scaled_object=live["ScaledObject"],
        budget=live["PodDisruptionBudget"],
        network_policy=live["NetworkPolicy"],
    )


def settle(about: Json, observed: Observed | None = None) -> tuple[Json, Observed]:
    """Apply everything and write the status; return both as they then are."""
    before = observed or Observed()
    outcome = look(about, before)
    after = carry_out(outcome, before)
    return {**about, "status": dict(outcome.status)}, after


def rolled_out(observed: Observed, *, ready: int, replicas: int | None = None) -> Observed:
    """Return the state with the Deployment's controller's word on its pods."""
    deployment = copy.deepcopy(dict(observed.deployment or {}))
    total = ready if replicas is None else replicas
    deployment["status"] = {
        "observedGeneration": 1,
        "replicas": total,
        "updatedReplicas": total,
        "readyReplicas": ready,
    }
    pods = tuple(pod(f"chat-{i}", ready=i < ready) for i in range(total))
    return Observed(
        deployment=deployment,
        service=observed.service,
        service_account=observed.service_account,
        pods=pods,
        nodes=observed.nodes,
    )


def pod(
    name: str,
    *,
    ready: bool = False,
    container: Json | None = None,
    conditions: list[Json] | None = None,
    **status: Any,
) -> Json:
    """A pod whose engine runs; `container` replaces parts of its container's status."""
    state = {
        "name": "engine",
        "ready": ready,
        "restartCount": 0,
        "state": {"running": {"startedAt": NOW}},
        **(container or {}),
    }
    turned = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "creationTimestamp": NOW},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "podIP": "198.19.252.7",
            "conditions": [turned, *(conditions or [])],
            "containerStatuses": [state],
            **status,
        },
    }


def condition(outcome: Outcome, kind: str) -> tuple[str, str, str]:
    """Return a condition's status, reason and message."""
    found = next(c for c in outcome.status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def applied(outcome: Outcome, kind: str) -> Json | None:
    """Return the manifest of a kind that is to be applied."""
    return next((dict(m) for m in outcome.apply if m["kind"] == kind), None)


def template_of(outcome: Outcome) -> Json:
    """Return the pod template that is to be applied."""
    deployment = applied(outcome, "Deployment")
    assert deployment is not None
    template: Json = deployment["spec"]["template"]
    return template


def flag(outcome: Outcome, name: str) -> str:
    """Return the value of a flag on the engine's command line."""
    args: list[str] = template_of(outcome)["spec"]["containers"][0]["args"]
    return args[args.index(name) + 1]


def seen(*pods: Json, ready: int = 0) -> tuple[Json, Observed]:
    """A settled QwenDeployment whose Deployment made these pods."""
    about, observed = settle(resource())
    observed = rolled_out(observed, ready=ready, replicas=len(pods))
    return about, dataclasses.replace(observed, pods=pods)
