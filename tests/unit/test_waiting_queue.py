"""Order of rank, and that nobody is overtaken for ever."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from qwen_engine.sequence import SamplingParams, SchedulingParams, Sequence
from qwen_engine.waiting_queue import MAX_OVERTAKERS, WaitingQueue

_arrivals = count()


def make_sequence(priority: int = 0) -> Sequence:
    arrival = next(_arrivals)
    return Sequence(
        request_id=str(arrival),
        token_ids=[1],
        num_prompt_tokens=1,
        max_num_tokens=2,
        params=SamplingParams(max_tokens=1),
        scheduling=SchedulingParams(priority=priority),
        arrival=arrival,
    )


def queue_of(*priorities: int) -> tuple[WaitingQueue, list[Sequence]]:
    queue = WaitingQueue()
    sequences = [make_sequence(priority) for priority in priorities]
    for sequence in sequences:
        queue.add(sequence)
    return queue, sequences


def test_a_lower_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    queue, (a, b, c, d) = queue_of(0, 5, 0, -1)
    assert list(queue) == [d, a, c, b]


def test_one_that_comes_again_keeps_its_place() -> None:
    queue, (a, b, _) = queue_of(0, 0, 0)
    assert queue.pop_head() is a
    queue.add(a)
    queue.remove(b)
    assert queue.head is a
    assert len(queue) == 2


def test_only_those_that_came_before_are_overtaken() -> None:
    queue, (a, b, c) = queue_of(5, 0, 5)
    assert queue.pop_head() is b
    assert (a.num_overtakers, c.num_overtakers) == (1, 0)


def test_one_overtaken_often_enough_goes_before_all_others() -> None:
    queue, (patient,) = queue_of(1000)
    for _ in range(MAX_OVERTAKERS):
        queue.add(make_sequence())
        assert queue.pop_head() is not patient
    queue.add(make_sequence(-1000))
    assert queue.pop_head() is patient


@given(
    st.lists(st.one_of(st.integers(-2, 2), st.none()), max_size=400),
    st.integers(0, 3),
)
def test_at_most_so_many_later_arrivals_go_before_anyone(
    steps: list[int | None], num_first: int
) -> None:
    """`None` admits; a stream of admissions follows, in which everyone must have had a turn."""
    queue, waiting = queue_of(*[2] * num_first)
    passed: dict[Sequence, int] = dict.fromkeys(waiting, 0)
    for step in [*steps, *[None, -2] * 3 * MAX_OVERTAKERS]:
        if step is not None:
            sequence = make_sequence(step)
            queue.add(sequence)
            passed[sequence] = 0
        elif queue:
            head = queue.pop_head()
            del passed[head]
            for sequence in passed:
                passed[sequence] += sequence.arrival < head.arrival
        assert max(passed.values(), default=0) <= MAX_OVERTAKERS
        assert sorted(s.arrival for s in queue) == sorted(s.arrival for s in passed)
