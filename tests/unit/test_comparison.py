"""`bench --against`: what is asked of whom, what comes of the figures, and how they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qwen_engine import cli
from qwen_engine.bench_flags import bench_parser, bench_settings
from qwen_engine.comparison.command import SideError, run_comparison
from qwen_engine.comparison.table import summarise
from qwen_engine.comparison.work import Load

WORDS = ["./some-model", "--against", "transformers", "--input-len", "128", "--output-len", "64"]
FACTS = {"dtype": "bfloat16", "device": "cpu", "num_threads": 2, "memory_bytes": 4 << 30,
         "model_max_len": 2048}  # fmt: skip
MIB = 1 << 20
FIGURES: dict[str, dict[str, float]] = {
    "speed": {"first_token_seconds": 0.25, "first_token_deviation_seconds": 0.01,
              "tokens_per_second": 1234.5},
    "few": {"num_requests": 8, "peak_bytes": 1024 * MIB},
    "many": {"num_requests": 16, "peak_bytes": 1040 * MIB},
    "longest": {"num_tokens": 2048, "peak_bytes": 1536 * MIB},
    "dialogue": {"num_tokens": 960, "growth_bytes": 12 * MIB},
}  # fmt: skip


class Jobs:
    """Answers as the processes would."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, job: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(job)
        answer: dict[str, Any] = {"figures": FIGURES[job["work"]]}
        return answer | {"facts": FACTS} if job["side"] == "qwen-engine" else answer


def run(jobs: Any, *words: str) -> int:
    parser = bench_parser()
    settings = bench_settings(parser, parser.parse_or_exit([*WORDS, *words]))
    return run_comparison(settings, [*WORDS, *words], run_job=jobs)


def test_the_table_has_the_rows_that_people_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Jobs()) == 0
    shown = capsys.readouterr().out
    for row in (
        "./some-model: bfloat16 on cpu, 2 threads; 32 requests of 128 → 64 tokens, 8 at once",
        "time to first token                    0.250 s ± 0.010     0.250 s ± 0.010",
        "throughput                             1,234.5 tokens/s    1,234.5 tokens/s",
        "most requests at once in 4.00 GiB      1,544               1,544",
        "memory at 2,048 tokens of context      1.50 GiB            1.50 GiB",
        "growth over 10 rounds of dialogue      +12.0 MiB           +12.0 MiB",
    ):
        assert " ".join(row.split()) in " ".join(shown.split())


def test_ours_goes_first_and_the_other_gets_what_it_found_out() -> None:
    jobs = Jobs()
    run(jobs, "-o", "json")
    assert [job["side"] for job in jobs.seen] == ["qwen-engine", "transformers"] * 5
    assert all(job["facts"] == FACTS for job in jobs.seen[1:])
    assert all(job["words"][: len(WORDS)] == WORDS for job in jobs.seen)


def test_the_longest_context_is_the_model_s_unless_one_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = Jobs()
    run(jobs, "-o", "json")
    assert json.loads(capsys.readouterr().out)["load"]["longest_len"] == 2048
    assert {job["load"]["longest_len"] for job in jobs.seen if job["work"] == "longest"} == {2048}
    run(jobs := Jobs(), "--longest-len", "1K", "-o", "json")
    assert {job["load"]["longest_len"] for job in jobs.seen} == {1024}


def test_json_has_the_figures_of_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    run(Jobs(), "-o", "json")
    result = json.loads(capsys.readouterr().out)
    assert result["sides"]["transformers"]["tokens_per_second"] == 1234.5
    assert result["sides"]["qwen-engine"]["most_requests_at_once"] == 8 + (4096 - 1024) // 2
    assert set(result["versions"]) == {"qwen-engine", "transformers", "torch"}


def test_a_request_too_small_to_be_measured_is_no_number() -> None:
    figures = FIGURES | {"many": FIGURES["few"] | {"num_requests": 16}}
    assert summarise(figures, 4 << 30)["most_requests_at_once"] is None


def test_a_side_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(job: dict[str, Any]) -> dict[str, Any]:
        raise SideError(f"{job['side']} failed at {job['work']}: no such model")

    assert run(fail) == 1
    assert "qwen-engine failed at speed: no such model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["m", "--against", "llama.cpp"], "invalid choice: 'llama.cpp'"),
        (["m", "--against", "transformers", "--url", "http://a"], "leave --url out"),
        (["m", "--against", "transformers", "--longest-len", "1"], "must be at least 2"),
        (["m", "--longest-len", "64"], "add --against transformers"),
        (["m", "-o", "table"], "add --against transformers"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.run(["bench", *words])
    assert exit_info.value.code == 2
    assert says in capsys.readouterr().err


def test_each_kind_of_work_says_how_much_must_fit() -> None:
    load = Load(num_prompts=9, input_len=100, output_len=28, at_once=4, longest_len=900, seed=0)
    assert [load.most_tokens(work) for work in ("speed", "many", "longest")] == [512, 1024, 900]
    assert load.longest_request("few") == 128
    assert load.longest_request("dialogue") == load.most_tokens("dialogue") == 960
