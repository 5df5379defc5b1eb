"""An operator with nothing to do does nothing; a restart or an upgrade changes nothing."""

from __future__ import annotations

import copy
import json
import time

import pytest

from tests.cluster.kwok import NodeFactory
from tests.cluster.polling import until
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.qwen import CPU, SECONDS, Qwen, stays

QUIET_SECONDS = 5.0  # longer than a resync (3 s) and several scrapes (1 s)


@pytest.fixture
def settled(qwen: Qwen, operator: OperatorProcess, kwok_nodes: NodeFactory) -> Qwen:
    """One QwenDeployment that serves, one whose plan is refused, and nothing left to do."""
    kwok_nodes("plain-0")
    qwen.apply("chat", **CPU)
    qwen.apply("wrong", model={"id": "Qwen/Qwen9-1T"}, gpu={"count": 0})
    qwen.wait_for("chat", "Available", "Serving")
    qwen.wait_for("chat", "Progressing", "Settled")
    qwen.wait_for("wrong", "Planned", "UnknownModel")
    return qwen


def test_an_idle_operator_writes_nothing(settled: Qwen) -> None:
    assert stays(settled.versions, QUIET_SECONDS)


def test_a_restart_writes_nothing(settled: Qwen, operator: OperatorProcess) -> None:
    before = settled.versions()
    operator.stop()
    operator.start()
    assert stays(settled.versions, 2)
    assert settled.versions() == before
    operator.kill()
    operator.start()
    assert stays(settled.versions, QUIET_SECONDS)
    assert settled.versions() == before


def test_an_upgrade_that_renders_otherwise_restarts_no_pod(
    settled: Qwen, operator: OperatorProcess
) -> None:
    """What an older version rendered is put into the Deployment, as if it had been applied then."""
    operator.stop()
    deployment = settled.get("deployment", "chat")
    notes = copy.deepcopy(deployment["metadata"]["annotations"])
    record = json.loads(notes["qwenoperator.io/decision"])
    record["template"]["spec"]["containers"][0]["env"].append({"name": "OLD", "value": "1"})
    record["plan"]["settings"][0]["reason"] = "an older planner's words"
    notes["qwenoperator.io/decision"] = json.dumps(record)
    patch = {"metadata": {"annotations": notes}, "spec": {"template": record["template"]}}
    settled.kubectl("patch", "deployment", "chat", "--type=strategic", "-p", json.dumps(patch))

    def is_rolled_out() -> bool:
        pods = settled.all("pod")
        return len(pods) == 1 and "OLD" in str(pods[0]) and pods[0]["status"]["phase"] == "Running"

    until(is_rolled_out, what="the older version's pod", within_seconds=SECONDS)
    [old] = [pod["metadata"]["uid"] for pod in settled.all("pod")]

    operator.start()
    until(
        lambda: (
            settled.status("chat")["plan"]["settings"][0]["reason"] == "an older planner's words"
        ),
        what="the recorded plan in status",
        within_seconds=SECONDS,
    )
    pods = lambda: [pod["metadata"]["uid"] for pod in settled.all("pod")]  # noqa: E731
    assert stays(pods, 3)
    assert pods() == [old]


def test_a_status_or_annotation_that_somebody_writes_restarts_no_pod(settled: Qwen) -> None:
    [before] = [pod["metadata"]["uid"] for pod in settled.all("pod")]
    settled.kubectl("annotate", "qwen", "chat", "team=a")
    settled.kubectl("label", "qwen", "chat", "team=a")
    settled.kubectl(
        "patch", "qwen", "chat", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": {"ready": "9/9"}}),
    )  # fmt: skip
    until(
        lambda: settled.status("chat")["ready"] == "1/1",
        what="status put right",
        within_seconds=SECONDS,
    )
    assert [pod["metadata"]["uid"] for pod in settled.all("pod")] == [before]


def test_the_operator_leaves_no_marks_on_the_resource(settled: Qwen) -> None:
    metadata = settled.get("qwen", "chat")["metadata"]
    assert "finalizers" not in metadata
    notes = set(metadata.get("annotations", {}))
    assert notes <= {"kubectl.kubernetes.io/last-applied-configuration"}


def test_each_event_is_told_once_whatever_happens_afterwards(
    settled: Qwen, operator: OperatorProcess
) -> None:
    for _ in range(3):
        settled.kubectl("annotate", "qwen", "wrong", "x=y", "--overwrite")
        settled.kubectl("annotate", "qwen", "wrong", "x-")
    operator.stop()
    operator.start()
    assert stays(settled.versions, 3)
    counts = [
        event.get("count")
        for event in settled.all("event")
        if event["involvedObject"]["name"] == "wrong"
    ]
    assert counts == [1]


def test_it_ends_at_once_when_asked(operator: OperatorProcess) -> None:
    start = time.monotonic()
    operator.stop()
    assert time.monotonic() - start < 8
