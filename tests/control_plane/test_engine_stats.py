"""Blocks in status come from the engines; here stand-ins answer for them on loopback addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.engines import Engine, give_address
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Two engines."""
    made = [Engine(free=90), Engine(free=70)]
    yield made
    for engine in made:
        engine.close()


def test_free_blocks_are_added_up_followed_and_written_no_more_than_they_change(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory, engines: list[Engine]
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU, replicas=2)
    until(lambda: qwen.status("chat").get("ready") == "2/2", what="2/2", within_seconds=SECONDS)
    pods = [pod["metadata"]["name"] for pod in qwen.all("pod")]
    for name, engine in zip(pods, engines, strict=True):
        give_address(qwen, name, engine)

    def blocks() -> dict[str, int]:
        found: dict[str, int] = qwen.status("chat").get("blocks", {})
        return found

    wanted = {"total": 200, "free": 160, "used": 40, "cached": 0}
    until(lambda: blocks() == wanted, what="added up", within_seconds=SECONDS)
    assert qwen.kubectl("get", "qwen").splitlines()[1].split()[5] == "160"
    assert stays(lambda: qwen.get("qwen", "chat")["metadata"]["resourceVersion"], 4)

    engines[0].free = 10
    until(lambda: blocks()["free"] == 80, what="followed", within_seconds=SECONDS)

    # an engine that talks nonsense, or none at all, leaves the last word standing
    engines[1].raw = b"<html>"
    assert stays(blocks, 3)
    engines[1].close()
    assert stays(blocks, 3)

    qwen.kubectl("scale", "qwen/chat", "--replicas=0")
    until(lambda: blocks() == {}, what="no blocks without pods", within_seconds=SECONDS)


def test_what_an_engine_took_stands_beside_the_plan_and_is_told_when_it_is_off(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory, engines: list[Engine]
) -> None:
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU)
    qwen.wait_for("chat", "Available", "Serving")
    ledger = qwen.status("chat")["plan"]["ledger"]
    planned = {line["component"]: line["bytes"] for line in ledger[:4]}
    engines[0].measured = {**planned, "weights": planned["weights"] * 2}
    [pod] = qwen.all("pod")
    give_address(qwen, pod["metadata"]["name"], engines[0])

    message = qwen.wait_for("chat", "PlanAccurate", "PlanInaccurate")["message"]
    assert "weights" in message
    qwen.wait_events("chat", ("Warning", "PlanInaccurate"))
    engines[0].measured = planned
    qwen.wait_for("chat", "PlanAccurate", "WithinTolerance")
    assert qwen.status("chat")["plan"]["accuracy"]["error"] == "+0.0 %"


def test_vllm_runs_on_the_planned_gpus_and_its_blocks_come_from_its_metrics(
    qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory, engines: list[Engine]
) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"}
    kwok_nodes("l40s-0", labels=labels, allocatable={"nvidia.com/gpu": "4"})
    model, gpu = {"id": "Qwen/Qwen3-32B"}, {"count": 4}
    qwen.apply("chat", model=model, gpu=gpu, engine={"runtime": "VLLM"})
    qwen.wait_for("chat", "Available", "Serving")
    [pod] = qwen.all("pod")
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == str(qwen.status("chat")["plan"]["device"]["count"]) == "2"
    give_address(qwen, pod["metadata"]["name"], engines[0])
    blocks = {"total": 100, "free": 90, "used": 10}
    until(lambda: qwen.status("chat").get("blocks") == blocks, what="", within_seconds=SECONDS)
    assert qwen.status("chat")["plan"]["engine"] == "vllm"
