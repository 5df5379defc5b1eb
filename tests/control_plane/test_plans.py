"""From a spec and the cluster's nodes to a plan in status, on a real API server."""

from __future__ import annotations

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, L4_LABELS, SECONDS, Qwen

GPU = {"nvidia.com/gpu": "1"}
QWEN3_8B = {"model": {"id": "Qwen/Qwen3-8B"}}


def test_the_labels_of_a_node_become_a_plan_and_pods_that_run_there(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("l4-0", labels=L4_LABELS, allocatable=GPU)
    qwen.apply("chat", **QWEN3_8B)
    qwen.wait_for("chat", "Available", "Serving")
    plan = qwen.status("chat")["plan"]
    assert plan["device"] == {
        "kind": "gpu",
        "product": "NVIDIA-L4",
        "count": 1,
        "memoryMiB": 23034,
        "capability": "8.9",
        "source": "nvidia.com/gpu.memory of node l4-0",
    }
    assert sum(line["bytes"] for line in plan["ledger"]) == 23034 * 2**20
    assert all(setting["reason"] for setting in plan["settings"])
    [pod] = qwen.all("pod")
    assert pod["spec"]["nodeName"] == "l4-0"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert qwen.status("chat")["ready"] == "1/1"
    table = qwen.kubectl("get", "qwen").split("\n")
    assert table[0].split() == ["NAME", "READY", "STATUS", "MODEL", "GPU", "FREE", "BLOCKS", "AGE"]
    assert table[1].split()[:5] == ["chat", "1/1", "Serving", "Qwen/Qwen3-8B", "NVIDIA-L4"]


def test_a_model_nobody_knows_is_told_and_planned_once_it_is_corrected(
    qwen: Qwen, operator: OperatorProcess
) -> None:
    qwen.apply("chat", model={"id": "Qwen/Qwen9-1T"}, gpu={"count": 0})
    refused = qwen.wait_for("chat", "Planned", "UnknownModel")
    assert "spec.model.config" in refused["message"]
    assert qwen.all("deployment") == []
    unknown = ("Warning", "UnknownModel")
    assert qwen.wait_events("chat", unknown) == [unknown]

    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Planned", "PlanFits")
    assert len(qwen.all("deployment")) == 1
    events = qwen.wait_events("chat", ("Normal", "PlanFits"), unknown)
    assert sorted(events)[:2] == [("Normal", "PlanFits"), unknown]


def test_a_plan_that_does_not_fit_names_what_would_and_that_works(
    qwen: Qwen, operator: OperatorProcess
) -> None:
    small = {"resources": {"limits": {"memory": "3Gi"}}}
    qwen.apply("chat", **CPU, context={"maxModelLen": 32768}, engine=small)
    refused = qwen.wait_for("chat", "Planned", "DoesNotFit")["message"]
    largest = int(refused.split("largest context that fits is ")[1].split(" ")[0].replace(",", ""))
    assert 0 < largest < 32768
    qwen.patch("chat", {"context": {"maxModelLen": largest}})
    qwen.wait_for("chat", "Planned", "PlanFits")
    assert qwen.status("chat")["plan"]["maxModelLen"] == largest
    assert qwen.status("chat")["observedGeneration"] == 2


def test_without_a_gpu_it_waits_and_starts_when_a_labelled_node_comes(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    qwen.apply("chat", **QWEN3_8B)
    message = qwen.wait_for("chat", "Planned", "UnknownGPU")["message"]
    assert "spec.gpu.product" in message
    assert "spec.gpu.count to 0" in message

    kwok_nodes("bare", labels={"nvidia.com/gpu.product": "NVIDIA-Z9"}, allocatable=GPU)
    until_named = qwen.wait_for_message("chat", "Planned", "node bare")
    assert "nvidia.com/gpu.memory" in until_named

    qwen.cluster.kubectl("label", "node", "bare", "nvidia.com/gpu.memory=24000")
    qwen.wait_for("chat", "Planned", "PlanFits")
    assert qwen.status("chat")["plan"]["device"]["product"] == "NVIDIA-Z9"


def test_of_two_products_the_smaller_that_fits_is_taken_and_both_plans_are_shown(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("l4-0", labels=L4_LABELS, allocatable=GPU)
    labels = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"}
    kwok_nodes("l40s-0", labels=labels, allocatable=GPU)
    qwen.apply("chat", **QWEN3_8B)
    message = qwen.wait_for("chat", "Planned", "PlanFits")["message"]
    plan = qwen.status("chat")["plan"]
    assert plan["device"]["product"] == "NVIDIA-L4"
    assert [(p["product"], p["chosen"]) for p in plan["pools"]] == [
        ("NVIDIA-L4", True),
        ("NVIDIA-L40S", False),
    ]
    assert "spec.gpu.product chooses another: NVIDIA-L40S" in message


def test_no_room_is_told_in_the_schedulers_words(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("l4-0", labels=L4_LABELS, allocatable=GPU)
    qwen.apply("chat", **QWEN3_8B, replicas=2)
    qwen.wait_for("chat", "Degraded", "Unschedulable")
    qwen.wait_for("chat", "Available", "Serving")
    message = qwen.condition("chat", "Degraded")["message"]
    assert "Insufficient nvidia.com/gpu" in message
    assert qwen.status("chat")["ready"] == "1/2"


def test_what_the_api_server_refuses_of_the_pod_overlay_is_told(
    qwen: Qwen, operator: OperatorProcess
) -> None:
    bad = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    qwen.apply("chat", **CPU, template={"affinity": bad})
    message = qwen.wait_for("chat", "Degraded", "ApplyRefused")["message"]
    assert "nodeSelectorTerms" in message
    qwen.patch("chat", {"template": None})
    qwen.wait_for("chat", "Available", "Unschedulable")


def test_what_is_worth_a_warning_shows_in_describe_and_as_an_event(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory
) -> None:
    kwok_nodes("l4-0", labels=L4_LABELS, allocatable=GPU)
    qwen.apply("chat", **QWEN3_8B, engine={"overrides": {"gpuMemoryUtilization": 0.97}})
    qwen.wait_for("chat", "Planned", "PlanFits")
    until(
        lambda: ("Warning", "PlanWarning") in qwen.events("chat"),
        what="the event",
        within_seconds=SECONDS,
    )
    described = " ".join(qwen.kubectl("describe", "qwen", "chat").split())
    words = "spec.engine.overrides.gpuMemoryUtilization=0.97 leaves 3 % of the GPU"
    assert described.count(words) >= 3  # the plan, the condition, the event
