"""`bench --against transformers` compares like with like: both sides do all of the same work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch

from qwen_engine.comparison.__main__ import run_job
from qwen_engine.comparison.command import SideError, _run_process
from qwen_engine.comparison.sides import EngineSide, TransformersSide
from qwen_engine.comparison.work import Load, measure
from qwen_engine.options import EngineOptions
from qwen_engine.planning import Demands
from tests.models.tiny import build_tiny

LOAD = Load(num_prompts=3, input_len=20, output_len=4, at_once=2, longest_len=200, seed=1)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def make_sides(work: str) -> tuple[EngineSide, TransformersSide]:
    options = EngineOptions(
        model=str(build_tiny("qwen3-tied")), device="cpu", demands=Demands(dtype="float32")
    )
    ours = EngineSide(options, work, LOAD)  # type: ignore[arg-type]
    return ours, TransformersSide(ours.facts)


def test_both_sides_give_the_same_tokens() -> None:
    prompts = [[7, 300, 12, 9], [5, 6, 7, 8]]
    ours, theirs = make_sides("speed")
    assert ours.generate(prompts, 6) == theirs.generate(prompts, 6)


@pytest.mark.parametrize("work", ["speed", "many", "longest", "dialogue"])
def test_each_kind_of_work_has_figures_on_both_sides(work: str) -> None:
    figures = [measure(side, work, LOAD) for side in make_sides(work)]  # type: ignore[arg-type]
    assert figures[0].keys() == figures[1].keys()
    for of_side in figures:
        if work == "speed":
            assert of_side["tokens_per_second"] > 0
        else:
            assert of_side.get("peak_bytes", 1 << 27) > 1 << 26


def test_a_side_runs_in_a_process_of_its_own_and_says_what_it_found() -> None:
    words = [str(build_tiny("qwen3-tied")), "--dtype", "float32", "--device", "cpu"]
    job = {"side": "qwen-engine", "work": "longest", "load": asdict(LOAD), "words": words}
    there, here = _run_process(job), run_job(job)
    here["facts"]["num_threads"] = there["facts"]["num_threads"]  # one here, see above
    assert there["facts"] == here["facts"]
    assert there["figures"]["num_tokens"] == here["figures"]["num_tokens"] == 200
    assert there["figures"]["peak_bytes"] < 2 << 30


def test_a_side_that_cannot_do_the_work_says_why() -> None:
    job = {"side": "qwen-engine", "work": "longest", "load": asdict(LOAD), "words": ["./nowhere"]}
    with pytest.raises(SideError, match=r"qwen-engine failed at longest: .*nowhere"):
        _run_process(job)
