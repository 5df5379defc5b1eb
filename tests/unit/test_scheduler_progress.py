"""That every sequence ends, whatever comes in whatever order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_engine.scheduler import Scheduler
from qwen_engine.sequence import Sequence, SequenceStatus
from tests.unit.test_scheduler import add, make_scheduler, run_step

_requests = st.lists(
    st.tuples(
        st.integers(1, 24),  # prompt tokens
        st.integers(1, 16),  # output tokens
        st.integers(0, 30),  # the step it arrives at
        st.integers(0, 2),  # which of three prefixes it shares
        st.sampled_from([None, None, 5, 12]),  # aborted so many steps after it arrived
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150)
@given(
    requests=_requests,
    num_blocks=st.integers(10, 30),
    block_size=st.sampled_from([1, 4, 16]),
    budget=st.sampled_from([1, 3, 16, 1000]),
    max_num_seqs=st.sampled_from([1, 3, 100]),
)
def test_every_request_ends_in_whatever_pool_budget_and_order(
    requests: list[tuple[int, int, int, int, int | None]],
    num_blocks: int,
    block_size: int,
    budget: int,
    max_num_seqs: int,
) -> None:
    scheduler = make_scheduler(
        max(num_blocks, -(-40 // block_size)),
        block_size=block_size,
        budget=budget,
        max_num_seqs=max_num_seqs,
    )
    finished: list[str] = []
    live: dict[str, Sequence] = {}
    most_steps = 31 + sum(-(-(p + o) // budget) + 2 * (p + o) for p, o, *_ in requests) * 3
    for step in range(most_steps):
        for index, (num_prompt, num_output, arrival, kind, _) in enumerate(requests):
            if arrival == step:
                prompt = [kind * 100 + i for i in range(num_prompt)]
                live[str(index)] = add(scheduler, str(index), prompt, max_tokens=num_output)
        for index, (_, _, arrival, _, abort_after) in enumerate(requests):
            if abort_after is not None and step == arrival + abort_after and str(index) in live:
                scheduler.finish(live.pop(str(index)), None)
        given_tokens = run_step(scheduler, token_id=step)
        assert sum(given_tokens.values()) <= budget
        assert all(num_tokens > 0 for num_tokens in given_tokens.values())
        assert bool(given_tokens) == bool(live), "a step must advance somebody"
        check_consistent(scheduler, live)
        for name in [n for n, s in live.items() if s.status is SequenceStatus.FINISHED]:
            finished.append(name)
            del live[name]
        if step > 30 and not live:
            break
    assert not live, f"starved: {list(live)}"
    assert scheduler.blocks.pool.num_free == scheduler.blocks.pool.num_total
    aborted = sum(abort is not None for *_, abort in requests)
    assert len(finished) >= len(requests) - aborted


def check_consistent(scheduler: Scheduler, live: dict[str, Sequence]) -> None:
    blocks = scheduler.blocks
    unfinished = {n for n, s in live.items() if s.status is not SequenceStatus.FINISHED}
    queued = [s.request_id for s in (*scheduler.running, *scheduler.waiting)]
    assert sorted(queued) == sorted(unfinished)
    assert blocks.pool.num_free + blocks.pool.num_used == blocks.pool.num_total
    for sequence in scheduler.waiting:
        assert not sequence.block_table
        assert sequence.num_computed_tokens == 0
    for sequence in scheduler.running:
        assert sequence.num_computed_tokens <= len(sequence.block_table) * blocks.block_size
        assert 0 <= sequence.num_computed_tokens < sequence.num_tokens
    arrival = list(live)
    in_order = [arrival.index(s.request_id) for s in scheduler.running]
    assert in_order == sorted(in_order), "the running list is in order of arrival"
