"""The plan against what the process really takes: weights within 1 %, the whole within 10 %."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import build_tiny

PLANNED_ONLY = {"unused", "reserve"}


def fill(server: ServerProcess, model: str, *, num: int, tokens: int) -> None:
    """Have as many requests at once as the engine runs, with prompts that fill its steps."""

    def ask(number: int) -> None:
        # another beginning for each: nothing is found in the prefix cache
        prompt = [10 + number, *range(20, 20 + tokens)]
        body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0.9, "top_p": 0.9}
        assert server.post("/v1/completions", body)[0] == 200

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def planned(stats: dict[str, Any]) -> dict[str, int]:
    lines = stats["plan"]["ledger"]
    return {
        line["component"]: line["bytes"]
        for line in lines
        if line["component"] not in PLANNED_ONLY and line["bytes"]
    }


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(
        tmp_path_factory.mktemp("smollm2") / "log", str(build_smollm2()),
        "--served-model-name", NAME, "--device", "cpu", "--max-model-len", "1024",
        "--max-num-seqs", "4", "--num-gpu-blocks-override", "128", "--block-size", "32",
    )  # fmt: skip
    yield process.wait_ready()
    process.stop()


Check = Callable[[ServerProcess, int, int], None]


def check(server: ServerProcess, num: int, tokens: int) -> None:
    fill(server, NAME, num=num, tokens=tokens)
    stats = server.get("/stats")[1]
    expected, measured = planned(stats), stats["measured"]
    assert measured.keys() == expected.keys()
    assert measured["weights"] == pytest.approx(expected["weights"], rel=0.01)
    assert measured["kv-cache"] == expected["kv-cache"]
    assert sum(measured.values()) == pytest.approx(sum(expected.values()), rel=0.10), (
        f"planned {expected}, measured {measured}"
    )


def test_smollm2_takes_what_was_planned_line_by_line(smollm2: ServerProcess) -> None:
    check(smollm2, num=4, tokens=300)


def test_a_tiny_model_takes_what_was_planned_line_by_line(tmp_path: Path) -> None:
    # a server of its own: what others have asked of the shared one belongs to its peak
    process = ServerProcess(
        tmp_path / "log", str(build_tiny("qwen3-tied")), "--served-model-name", NAME,
        "--device", "cpu", "--max-model-len", "512", "--max-num-seqs", "8",
        "--max-num-batched-tokens", "128", "--num-gpu-blocks-override", "64", "--block-size", "16",
    )  # fmt: skip
    try:
        check(process.wait_ready(), num=8, tokens=100)
    finally:
        process.stop()


def test_the_lines_are_the_resident_set_and_the_metrics_say_the_same(
    smollm2: ServerProcess,
) -> None:
    measured = smollm2.get("/stats")[1]["measured"]
    samples = [
        sample
        for family in text_string_to_metric_families(smollm2.get("/metrics")[1])
        for sample in family.samples
    ]
    found = {
        (s.labels["component"], s.labels["kind"]): s.value
        for s in samples
        if s.name == "qwen_memory_bytes"
    }
    told = {component: v for (component, kind), v in found.items() if kind == "measured"}
    assert told == pytest.approx(measured, rel=0.01, abs=2**20)  # the peak may move in between
    assert {k for k, kind in found if kind == "planned"} == measured.keys() | PLANNED_ONLY
    resident = next(s.value for s in samples if s.name == "process_resident_memory_bytes")
    assert sum(measured.values()) == pytest.approx(resident, rel=0.05)
