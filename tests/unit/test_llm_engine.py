"""The step loop with a worker that only pretends: limits, stops, aborts, failures, numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwen_engine.config import EngineConfig
from qwen_engine.errors import (
    CannotEverFitError,
    DuplicateRequestError,
    InvalidRequestError,
    PromptTooLongError,
)
from qwen_engine.llm_engine import LLMEngine, StepOutput
from qwen_engine.memory import MemoryMeasured
from qwen_engine.model_config import parse_model_config
from qwen_engine.sequence import SamplingParams, ScheduledBatch, SchedulingParams

EOS = 9
MODEL = parse_model_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 1000,
        "vocab_size": 100,
        "eos_token_id": EOS,
    }
)


class FakeWorker:
    """Says the numbers of `script` in turn, to everybody; raises where it finds an exception."""

    def __init__(self, script: list[int | Exception] | None = None) -> None:
        self.script = script or []
        self.batches: list[ScheduledBatch] = []

    def grow_rest(self, num_bytes: int) -> None:
        raise NotImplementedError

    def take_encoded(self) -> list[bytes]:
        return []

    def execute(self, batch: ScheduledBatch) -> list[int]:
        self.batches.append(batch)
        said = self.script.pop(0) if self.script else 50
        if isinstance(said, Exception):
            raise said
        return [said for entry in batch.entries if entry.needs_token]

    def measure(self) -> MemoryMeasured:
        return MemoryMeasured(1, 2, 3)


def make_engine(script: list[int | Exception] | None = None, **settings: Any) -> LLMEngine:
    config = EngineConfig(
        model_path=Path("/nowhere"),
        **{"max_model_len": 64, "num_gpu_blocks": 16, "block_size": 4, **settings},
    )
    return LLMEngine(config, MODEL, FakeWorker(script))


def run(engine: LLMEngine) -> dict[str, list[StepOutput]]:
    outputs: dict[str, list[StepOutput]] = {}
    while engine.has_unfinished():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def ids_and_reason(outputs: list[StepOutput]) -> tuple[list[int], str | None]:
    return [i for output in outputs for i in output.token_ids], outputs[-1].finish_reason


def test_a_request_runs_to_max_tokens() -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=5))
    assert ids_and_reason(run(engine)["a"]) == ([50] * 5, "length")


def test_end_of_sequence_stops_and_is_reported() -> None:
    engine = make_engine([5, 6, EOS])
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=10))
    assert ids_and_reason(run(engine)["a"]) == ([5, 6, EOS], "stop")


def test_end_of_sequence_can_be_ignored() -> None:
    engine = make_engine([5, EOS, 6])
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
    assert ids_and_reason(run(engine)["a"]) == ([5, EOS, 6], "length")


def test_a_stop_id_stops_but_not_before_min_tokens() -> None:
    engine = make_engine([5, 7, 5, 7])
    params = SamplingParams(max_tokens=10, min_tokens=3, stop_token_ids=frozenset({7}))
    engine.add_request("a", [1], params)
    assert ids_and_reason(run(engine)["a"]) == ([5, 7, 5, 7], "stop")


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    engine = make_engine([5, EOS])
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    assert ids_and_reason(run(engine)["a"]) == ([5, EOS], "stop")


def test_the_model_length_ends_what_max_tokens_does_not() -> None:
    engine = make_engine(max_model_len=10)
    engine.add_request("a", [1] * 7, SamplingParams(max_tokens=50))
    assert ids_and_reason(run(engine)["a"]) == ([50] * 3, "length")


def test_the_pool_ends_what_the_model_length_does_not() -> None:
    engine = make_engine(num_gpu_blocks=4)
    assert engine.max_request_tokens == 16
    engine.add_request("a", [1] * 7, SamplingParams(max_tokens=50))
    engine.add_request("b", [2] * 7, SamplingParams(max_tokens=50))
    outputs = run(engine)
    assert ids_and_reason(outputs["a"]) == ids_and_reason(outputs["b"]) == ([50] * 9, "length")
    assert engine.stats().num_preemptions > 0


def test_a_prompt_without_room_for_an_answer_is_refused_with_the_figures() -> None:
    engine = make_engine(max_model_len=10)
    with pytest.raises(PromptTooLongError, match=r"10 tokens"):
        engine.add_request("a", [1] * 10, SamplingParams(max_tokens=1))
    assert not engine.has_unfinished()


def test_a_prompt_larger_than_the_pool_is_refused_with_the_figures() -> None:
    engine = make_engine(num_gpu_blocks=2)
    with pytest.raises(CannotEverFitError, match=r"need 3 KV blocks.*has 2 \(8 tokens\)"):
        engine.add_request("a", [1] * 8, SamplingParams(max_tokens=1))
    assert not engine.has_unfinished()


@pytest.mark.parametrize("prompt", [[], [-1], [100], [1, 2, 2**40]])
def test_a_prompt_that_cannot_be_is_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="prompt"):
        make_engine().add_request("a", prompt, SamplingParams(max_tokens=1))


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = make_engine()
    engine.add_request("a", [1], SamplingParams(max_tokens=1))
    with pytest.raises(DuplicateRequestError, match="'a'"):
        engine.add_request("a", [1], SamplingParams(max_tokens=1))
    run(engine)
    engine.add_request("a", [1], SamplingParams(max_tokens=1))
    assert engine.has_unfinished()


def test_aborting_frees_the_blocks_at_once_and_twice_is_fine() -> None:
    engine = make_engine()
    engine.add_request("a", [1] * 9, SamplingParams(max_tokens=5))
    engine.step()
    assert engine.stats().num_used_blocks == 3
    engine.abort("a")
    engine.abort("a")
    assert engine.stats().num_used_blocks == 0
    assert not engine.has_unfinished()
    assert engine.step() == []


def test_after_a_failed_step_what_waits_is_served() -> None:
    engine = make_engine([50, RuntimeError("device lost")], max_num_seqs=2)
    for name in "abc":
        engine.add_request(name, [1] * 9, SamplingParams(max_tokens=5))
    engine.step()
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    assert engine.reset_after_failure() == ["a", "b"]
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 1, 0)
    assert stats.num_cached_blocks == 0, "what a failed step wrote is not to be trusted"
    outputs = run(engine)
    assert ids_and_reason(outputs["c"]) == ([50] * 5, "length")
    assert outputs["c"][0].num_cached_tokens == 0


def test_a_prefix_hit_is_reported_in_tokens() -> None:
    engine = make_engine()
    for name in "ab":
        engine.add_request(name, list(range(20, 30)), SamplingParams(max_tokens=2))
    outputs = run(engine)
    assert [outputs[name][0].num_cached_tokens for name in "ab"] == [0, 8]
    assert outputs["b"][0].num_prompt_tokens == 10
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 8)
    assert (stats.prompt_tokens, stats.output_tokens) == (20, 4)


def test_numbers_of_the_pool_add_up_at_every_step() -> None:
    engine = make_engine(num_gpu_blocks=8)
    for index in range(6):
        engine.add_request(str(index), [index] * 10, SamplingParams(max_tokens=12))
    while engine.has_unfinished():
        engine.step()
        stats = engine.stats()
        assert stats.num_free_blocks + stats.num_used_blocks == stats.num_total_blocks == 8
        assert stats.num_cached_blocks <= stats.num_free_blocks
        assert stats.blocks_allocated - stats.blocks_freed == stats.num_used_blocks
    assert stats.num_preemptions > 0


def test_a_step_gives_each_request_at_most_one_token() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    engine.add_request("a", [1] * 10, SamplingParams(max_tokens=1))
    assert [len(engine.step()) for _ in range(3)] == [0, 0, 1]


def test_a_prefix_is_shared_only_among_those_with_the_same_salt() -> None:
    engine = make_engine()
    for name, salt in {"a": None, "b": "x", "c": "x", "d": "y", "e": None}.items():
        scheduling = SchedulingParams(cache_salt=salt)
        engine.add_request(name, list(range(20, 30)), SamplingParams(max_tokens=2), scheduling)
    outputs = run(engine)
    assert [outputs[name][0].num_cached_tokens for name in "abcde"] == [0, 0, 8, 0, 8]
