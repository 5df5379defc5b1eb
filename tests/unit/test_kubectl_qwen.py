"""`kubectl qwen` as people use it: words in, text and exit code out. kubectl is a stand-in."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwen_operator.cli import main
from qwen_operator.observed import Observed
from qwen_operator.status import Reading
from tests.unit import kubectl_stand_in
from tests.unit.operator_states import gpu_spec, h100, l4, look, pod, resource, rolled_out, settle
from tests.unit.test_reconcile_pools import T4

Json = dict[str, Any]
QWEN = "qwendeployments.qwenoperator.io"
PATH = "/api/v1/namespaces/ns"
STATS = {
    **{f"num_{k}_gpu_blocks": v for k, v in
       {"total": 1000, "free": 900, "used": 100, "cached": 50}.items()},
    "num_used_cpu_blocks": 0, "num_total_cpu_blocks": 0,
    "num_requests_running": 3, "num_requests_waiting": 2, "num_requests_swapped": 1,
}  # fmt: skip

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Run `kubectl qwen WORDS` on a cluster of these objects and HTTP paths."""
    script, state = tmp_path / "kubectl", tmp_path / "state.json"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {kubectl_stand_in.__file__} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(script))
    monkeypatch.setenv("STATE", str(state))

    def run(*words: str, objects: Json | None = None, paths: Json | None = None) -> tuple[int, str]:
        state.write_text(json.dumps({"objects": objects or {}, "paths": paths or {}}))
        try:
            code = main.run(words)
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        return code, out + err

    return run


def served(**measured: int) -> Json:
    """A QwenDeployment on an L4 among others, that serves and has told what it took."""
    nodes = (l4(), h100(), T4)
    about, observed = settle(resource(gpu_spec()), Observed(nodes=nodes))
    observed = dataclasses.replace(rolled_out(observed, ready=1), pods=(pod("p0", ready=True),))
    lines = {line["component"]: line["bytes"] for line in about["status"]["plan"]["ledger"][:4]}
    reading = Reading({"total": 9, "free": 8, "used": 1, "cached": 0}, measured=lines | measured)
    outcome = look(about, dataclasses.replace(observed, readings={"p0": reading}))
    return {**about, "status": json.loads(json.dumps(outcome.status))}


def engine_pod(name: str = "chat-1", *, ready: bool = True) -> Json:
    made = pod(name, ready=ready)
    made["metadata"] |= {"namespace": "ns", "labels": {"qwenoperator.io/deployment": "chat"}}
    return made


def manifest(tmp_path: Path, *specs: Json) -> str:
    file = tmp_path / "qwen.yaml"
    documents = [{"kind": "Namespace"}, *(resource(spec) for spec in specs)]
    file.write_text("\n---\n".join(json.dumps(document) for document in documents))
    return str(file)


NODE = {
    "metadata": {"name": "l4-0", "labels": dict(l4().labels)},
    "status": {"allocatable": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
}


def test_explain_plans_for_the_clusters_nodes_as_the_operator_would(
    call: Call, tmp_path: Path
) -> None:
    code, text = call(
        "explain", "-f", manifest(tmp_path, gpu_spec()), objects={"nodes": {"items": [NODE]}}
    )
    assert code == 0
    assert "nvidia.com/gpu.memory of node l4-0" in text
    assert "--max-model-len" in text
    assert "█" in text


def test_explain_warns_of_replicas_that_the_nodes_have_no_gpus_for(
    call: Call, tmp_path: Path
) -> None:
    file = manifest(tmp_path, gpu_spec(replicas=2))
    code, text = call("explain", "-f", file, objects={"nodes": {"items": [NODE]}})
    assert code == 0
    assert "warning: spec.replicas=2 is more than the nodes have room for" in text


def test_explain_needs_no_cluster_for_a_named_gpu_and_says_it_as_json(
    call: Call, tmp_path: Path
) -> None:
    file = manifest(tmp_path, gpu_spec(), {"model": {"id": "Qwen/Qwen9-1T"}, "gpu": {"count": 0}})
    code, text = call("explain", "-f", file, "--gpu", "NVIDIA-L4", "-o", "json")
    fits, unknown = json.loads(text)
    assert code == 1
    assert fits["plan"]["device"]["memoryMiB"] == 23034
    assert (unknown["planned"], unknown["reason"]) == (False, "UnknownModel")


@pytest.mark.parametrize(
    ("spec", "words", "code", "told"),
    [
        (gpu_spec(), ["--offline"], 2, "give --gpu PRODUCT"),
        (gpu_spec(gpu={"product": "NVIDIA-L4"}), ["--offline"], 0, "can be planned"),
        (gpu_spec(), ["--gpu-memory-mib", "9000"], 1, "does not fit"),
        (gpu_spec(gpu={"count": 7}), ["--offline"], 1, "spec.gpu.count"),
        (gpu_spec(), [], 3, "no such host"),
    ],
)
def test_explain_has_a_way_out_and_an_exit_code_for_each_failure(
    call: Call, tmp_path: Path, spec: Json, words: list[str], code: int, told: str
) -> None:
    found = call(
        "explain", "-f", manifest(tmp_path, spec), *words, objects={"nodes": "no such host"}
    )
    assert found[0] == code
    assert told in found[1]


@pytest.mark.parametrize("text", ["a: [", "- 1", "kind: Pod"])
def test_a_file_without_a_qwendeployment_is_refused_by_name(
    call: Call, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    code, told = call("explain", "-f", str(file))
    assert code == 2
    assert str(file) in told


def test_plan_shows_ledger_flags_kinds_of_gpu_and_what_was_taken(call: Call) -> None:
    code, text = call("plan", "chat", objects={f"{QWEN} chat": served()})
    assert code == 0
    for words in ("MEMORY", "--block-size", "→   NVIDIA-L4", "Tesla-T4", "TAKEN BY p0", "+0.0 %"):
        assert words in text


def test_plan_gives_flags_to_paste_and_json(call: Call) -> None:
    about = served()
    _, text = call("plan", "chat", "-o", "flags", objects={f"{QWEN} chat": about})
    assert text.startswith("--dtype bfloat16 --max-model-len ")
    assert text.strip().endswith("--enable-prefix-caching")
    _, text = call("plan", "chat", "-o", "json", objects={f"{QWEN} chat": about})
    assert json.loads(text) == about["status"]["plan"]


def test_a_refused_plan_is_told_with_the_conditions_sentence(call: Call) -> None:
    about = resource({"model": {"id": "Qwen/Qwen9-1T"}, "gpu": {"count": 0}})
    about["status"] = dict(look(about).status)
    code, text = call("plan", "chat", objects={f"{QWEN} chat": about})
    assert code == 1
    assert "UnknownModel" in text
    assert "spec.model.config" in text


def test_status_shows_conditions_blocks_and_planned_beside_measured(call: Call) -> None:
    code, text = call("status", "chat", objects={f"{QWEN} chat": served()})
    assert code == 0
    for words in ("PlanAccurate", "WithinTolerance", "8 of 9 blocks free", "PLANNED", "weights"):
        assert words in text
    assert "ADVICE" not in text


def test_status_exits_with_1_while_nothing_answers(call: Call) -> None:
    about, _ = settle(resource())
    code, text = call("status", "chat", "-o", "json", objects={f"{QWEN} chat": about})
    assert code == 1
    assert {c["type"] for c in json.loads(text)["conditions"]} >= {"Planned", "Available"}


def test_a_name_that_is_not_there_is_told_in_kubectls_words(call: Call) -> None:
    for command in ("plan", "status", "logs", "chat"):
        code, text = call(command, "nope")
        assert (code, "not found" in text) == (1, True)


def test_top_asks_every_pod_adds_up_and_says_who_is_silent(call: Call) -> None:
    pods = [engine_pod("chat-1"), engine_pod("chat-2"), engine_pod("chat-3", ready=False)]
    code, text = call(
        "top",
        objects={"pods -l qwenoperator.io/deployment": {"items": pods}},
        paths={f"{PATH}/pods/chat-{i}:8000/proxy/stats": STATS for i in (1, 2)},
    )
    lines = text.splitlines()
    assert code == 1
    assert lines[1].split() == ["chat-1", "█·········", "900", "100", "50", "1,000", "3", "2", "1"]
    assert "not ready" in lines[3]
    assert lines[4].split()[:3] == ["all", "█·········", "1,800"]


def test_top_of_one_deployment_as_json(call: Call) -> None:
    code, text = call(
        "top", "chat", "-o", "json",
        objects={"pods -l qwenoperator.io/deployment=chat": {"items": [engine_pod()]}},
        paths={f"{PATH}/pods/chat-1:8000/proxy/stats": STATS},
    )  # fmt: skip
    found = json.loads(text)
    assert code == 0
    assert found["total"]["free"] == 900
    assert found["pods"][0]["requests"] == {"running": 3, "waiting": 2, "swapped": 1}


def test_top_reads_vllms_own_figures_and_leaves_out_what_it_does_not_tell(call: Call) -> None:
    pod = engine_pod()
    pod["metadata"]["labels"]["qwenoperator.io/runtime"] = "vllm"
    metrics = [
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0',
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1',
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1001"} 1.0',
    ]
    code, text = call(
        "top",
        objects={"pods -l qwenoperator.io/deployment": {"items": [pod]}},
        paths={f"{PATH}/pods/chat-1:8000/proxy/metrics": metrics},
    )
    row = text.splitlines()[1].split()
    assert (code, row[2:]) == (0, ["900", "100", "–", "1,000", "3", "2", "–"])


def test_logs_hands_kubectls_own_flags_on_and_returns_its_exit_code(call: Call) -> None:
    code, text = call("logs", "chat", "-f", "--since=1h", objects={f"{QWEN} chat": served()})
    assert code == 7
    for word in ("qwenoperator.io/deployment=chat", "-f", "--since=1h", "--tail=-1", "--prefix"):
        assert word in text.split()


CHAT = f"{PATH}/services/chat:http/proxy/v1/chat/completions"


def test_chat_prints_the_answer_as_it_comes(call: Call) -> None:
    events = [{"choices": [{"delta": {"content": word}}]} for word in ("Par", "is.")]
    lines = [f"data: {json.dumps(event)}" for event in events]
    code, text = call(
        "chat", "chat", "Capital of France?",
        objects={f"{QWEN} chat": served()},
        paths={f"{CHAT}?stream": [*lines, "data: [DONE]"]},
    )  # fmt: skip
    assert (code, text) == (0, "Paris.\n")


def test_chat_with_nobody_to_answer_says_why(call: Call) -> None:
    about, _ = settle(resource())
    code, text = call("chat", "chat", "Hi", objects={f"{QWEN} chat": about})
    assert code == 1
    assert "the Deployment is being created" in text


def test_help_lists_the_commands_and_wrong_usage_is_told(call: Call) -> None:
    code, text = call("--help")
    assert code == 0
    for command in ("explain", "plan", "status", "top", "logs", "chat", "exit codes"):
        assert command in text
    assert call("plan")[0] == 2
    assert call("status", "chat", "--nonsense")[0] == 2
