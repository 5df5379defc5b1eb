"""The scheduler: one budget, admission, preemption."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

import pytest

from qwen_engine.block_manager import BlockManager
from qwen_engine.scheduler import Scheduler
from qwen_engine.sequence import (
    SamplingParams,
    ScheduledBatch,
    SchedulingParams,
    Sequence,
    SequenceStatus,
)


def make_scheduler(
    num_blocks: int = 100, *, block_size: int = 4, budget: int = 1000, max_num_seqs: int = 100
) -> Scheduler:
    blocks = BlockManager(num_blocks, block_size=block_size, enable_prefix_caching=True)
    return Scheduler(blocks, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)


def add(
    scheduler: Scheduler,
    name: str,
    token_ids: TokenIds[int],
    *,
    max_tokens: int = 50,
    priority: int = 0,
) -> Sequence:
    sequence = Sequence(
        request_id=name,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        max_num_tokens=len(token_ids) + max_tokens,
        params=SamplingParams(max_tokens=max_tokens),
        scheduling=SchedulingParams(priority=priority),
    )
    scheduler.add(sequence)
    return sequence


def run_step(scheduler: Scheduler, *, token_id: int = 7) -> dict[str, int]:
    """Schedule and pretend to execute; return how many tokens each sequence was given."""
    batch = scheduler.schedule()
    scheduler.advance(batch)
    for entry in batch.entries:
        if entry.needs_token:
            entry.sequence.token_ids.append(token_id)
            if entry.sequence.num_tokens >= entry.sequence.max_num_tokens:
                scheduler.finish(entry.sequence, "length")
    return {entry.sequence.request_id: entry.num_tokens for entry in batch.entries}


def test_a_prompt_is_computed_whole_then_a_token_at_a_time() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(10))
    assert run_step(scheduler) == {"a": 10}
    assert run_step(scheduler) == {"a": 1}


def test_a_long_prompt_is_cut_by_the_budget_and_decodes_come_first() -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, "a", range(4))
    assert run_step(scheduler) == {"a": 4}
    add(scheduler, "b", range(100, 120))
    assert run_step(scheduler) == {"a": 1, "b": 7}
    assert run_step(scheduler) == {"a": 1, "b": 7}
    assert run_step(scheduler) == {"a": 1, "b": 6}
    assert run_step(scheduler) == {"a": 1, "b": 1}


def test_a_token_is_asked_for_only_when_the_prompt_is_done() -> None:
    scheduler = make_scheduler(budget=6)
    add(scheduler, "a", range(10))
    first = scheduler.schedule()
    assert [(e.start, e.num_tokens, e.needs_token) for e in first.entries] == [(0, 6, False)]
    scheduler.advance(first)
    second = scheduler.schedule()
    assert [(e.start, e.num_tokens, e.needs_token) for e in second.entries] == [(6, 4, True)]


def test_no_more_run_than_max_num_seqs() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, range(4))
    assert set(run_step(scheduler)) == {"a", "b"}
    assert len(scheduler.waiting) == 1


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    scheduler = make_scheduler(num_blocks=8, budget=4)
    add(scheduler, "a", range(8), max_tokens=4)
    add(scheduler, "b", range(100, 125), max_tokens=4)  # 7 blocks; 6 are free beside a
    assert run_step(scheduler) == {"a": 4}
    assert run_step(scheduler) == {"a": 4}
    assert run_step(scheduler) == {"a": 1}
    assert scheduler.blocks.pool.num_used == 3


def test_tokens_found_in_the_prefix_cache_are_not_computed() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(10))
    run_step(scheduler)
    late = add(scheduler, "b", range(10))
    assert run_step(scheduler) == {"a": 1, "b": 2}
    assert late.num_cached_tokens == 8
    assert (scheduler.prefix_cache_hits, scheduler.prefix_cache_queries) == (8, 20)


def test_a_prefix_is_shared_within_one_step() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", range(10))
    add(scheduler, "b", range(10))
    assert run_step(scheduler) == {"a": 10, "b": 2}


def test_a_prefix_that_is_computed_in_chunks_is_not_computed_twice() -> None:
    scheduler = make_scheduler(budget=6)
    add(scheduler, "a", range(20))
    assert run_step(scheduler) == {"a": 6}
    add(scheduler, "b", range(20), priority=-1)
    assert [run_step(scheduler) for _ in range(3)] == [{"a": 6}, {"a": 6}, {"a": 2, "b": 4}]


def test_cached_tokens_count_towards_the_fit() -> None:
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, "a", range(12), max_tokens=8)
    run_step(scheduler)  # takes 3 of 5 blocks
    add(scheduler, "b", [*range(8), 50, 51], max_tokens=1)
    assert run_step(scheduler) == {"a": 1, "b": 2}


def test_the_newest_is_preempted_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(8), max_tokens=8)
    newest = add(scheduler, "b", range(100, 108), max_tokens=8)
    waiting = add(scheduler, "c", range(200, 208), max_tokens=8)
    assert run_step(scheduler) == {"a": 8, "b": 8}
    assert run_step(scheduler) == {"a": 1}  # a's ninth token takes what b had
    assert newest.status is SequenceStatus.WAITING
    assert list(scheduler.waiting) == [newest, waiting]
    assert scheduler.num_preemptions == 1
    assert newest.num_output_tokens == 1  # kept, and computed again as part of the prompt


def test_what_ends_and_what_is_aborted_is_counted_and_what_is_preempted_is_not() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(8), max_tokens=2)
    waiting = add(scheduler, "b", range(100, 108), max_tokens=8)
    run_step(scheduler)
    run_step(scheduler)
    assert (scheduler.num_finished, scheduler.num_preemptions) == (1, 1)
    scheduler.finish(waiting, None)
    assert scheduler.num_finished == 2


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, "a", range(8), max_tokens=8)
    add(scheduler, "b", range(100, 108), max_tokens=8)
    run_step(scheduler)
    add(scheduler, "c", [1], max_tokens=1)
    assert run_step(scheduler) == {"a": 1}


def test_finishing_or_aborting_frees_the_blocks_at_once() -> None:
    scheduler = make_scheduler()
    running = add(scheduler, "a", range(10))
    run_step(scheduler)
    waiting = add(scheduler, "b", range(10))
    scheduler.finish(running, "stop")
    scheduler.finish(waiting, None)
    assert scheduler.blocks.pool.num_used == 0
    assert scheduler.schedule() == ScheduledBatch((), 0)
    assert (running.finish_reason, waiting.finish_reason) == ("stop", None)


def test_aborting_what_runs_keeps_what_waits_and_forgets_prefixes() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running = add(scheduler, "a", range(10))
    waiting = add(scheduler, "b", range(10))
    scheduler.schedule()
    assert scheduler.abort_running() == [running]
    assert list(scheduler.waiting) == [waiting]
    assert scheduler.blocks.pool.num_cached == 0
    assert run_step(scheduler) == {"b": 10}


def test_a_sequence_larger_than_the_pool_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        add(make_scheduler(num_blocks=2), "a", range(8), max_tokens=1)


def test_a_lower_priority_is_admitted_first_and_preempted_last() -> None:
    scheduler = make_scheduler(num_blocks=6, max_num_seqs=2)
    late = add(scheduler, "late", range(8), max_tokens=12, priority=5)
    add(scheduler, "soon", range(100, 108), max_tokens=12)
    add(scheduler, "urgent", range(200, 208), max_tokens=4, priority=-1)
    assert list(run_step(scheduler)) == ["urgent", "soon"]
    while late.status is SequenceStatus.WAITING:
        run_step(scheduler)
    while scheduler.num_preemptions == 0:
        run_step(scheduler)
    assert late.num_preemptions == 1, "it came first, but its priority is the worst"


def test_a_new_one_must_leave_a_watermark_free_while_others_run() -> None:
    scheduler = make_scheduler(num_blocks=200)
    add(scheduler, "a", range(4), max_tokens=1)
    add(scheduler, "b", range(1000, 1000 + 198 * 4 - 1), max_tokens=1)  # 198 of 199 blocks
    assert run_step(scheduler) == {"a": 4}
    assert run_step(scheduler) == {"b": 198 * 4 - 1}, "alone it need not leave any"


def test_whoever_makes_room_for_a_later_arrival_was_overtaken() -> None:
    scheduler = make_scheduler(num_blocks=4)
    early = add(scheduler, "early", range(4), max_tokens=12, priority=1)
    run_step(scheduler)
    add(scheduler, "late", range(100, 108), max_tokens=8)
    while scheduler.num_preemptions == 0:
        run_step(scheduler)
    assert (early.num_preemptions, early.num_overtakers) == (1, 1)
