"""Priorities are obeyed, and yet nobody waits for ever: the bound that `scheduler` states."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import event, given, settings
from hypothesis import strategies as st

from qwen_engine import waiting_queue
from qwen_engine.preemption import RECOMPUTE
from qwen_engine.sequence import SchedulingParams, Sequence, SequenceStatus
from tests.unit.scheduler_machine import SWAP, Machine, make_machine

MAX_OVERTAKERS = 3  # instead of 64, so that a short run comes to it

_arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # the step it arrives at
        st.integers(1, 12),  # prompt tokens
        st.integers(1, 8),  # output tokens
        st.integers(-2, 2),  # priority
        st.sampled_from([0, 0, 0, 2]),  # forks of it
    ),
    min_size=8,
    max_size=24,
)


@settings(max_examples=150)
@given(
    arrivals=_arrivals,
    num_blocks=st.integers(5, 12),
    max_num_seqs=st.integers(1, 4),
    budget=st.sampled_from([1000, 8, 2]),
    swaps=st.booleans(),
)
def test_at_most_so_many_later_arrivals_are_admitted_before_anyone(
    arrivals: list[tuple[int, int, int, int, int]],
    num_blocks: int,
    max_num_seqs: int,
    budget: int,
    swaps: bool,
) -> None:
    machine = make_machine(
        num_blocks,
        20,
        budget=budget,
        policy=SWAP if swaps else RECOMPUTE,
        max_num_seqs=max_num_seqs,
    )
    passed: dict[Sequence, int] = {}  # those never admitted, and how many later ones were
    forks: set[Sequence] = set()
    with patch.object(waiting_queue, "MAX_OVERTAKERS", MAX_OVERTAKERS):
        step = 0
        while machine.live or step <= 12:
            for at, *request in arrivals:
                if at == step:
                    parent, *family = add_family(machine, *request)
                    passed |= dict.fromkeys((parent, *family), 0)
                    forks |= {*family}
            for entry in machine.step(token_id=step).entries:
                if entry.sequence in passed:
                    del passed[entry.sequence]
                    for other in passed:
                        passed[other] += other.arrival < entry.sequence.arrival
            for sequence, count in passed.items():
                # While a fork waits for its parent's prompt, others may take the places beside it.
                while_held = max_num_seqs if sequence in forks else 0
                assert count <= MAX_OVERTAKERS + while_held
                event(f"overtaken as often as may be: {count >= MAX_OVERTAKERS}")
            step += 1
            assert step < 3000, "starved"


def add_family(
    machine: Machine, num_prompt: int, num_output: int, priority: int, num_forks: int
) -> list[Sequence]:
    prompt = [machine.num_added * 100 + i for i in range(num_prompt)]
    scheduling = SchedulingParams(priority=priority)
    parent = machine.add(prompt, max_tokens=num_output, scheduling=scheduling)
    return [
        parent,
        *(
            machine.add(prompt, max_tokens=num_output, scheduling=scheduling, parent=parent)
            for _ in range(num_forks)
        ),
    ]


@settings(max_examples=60)
@given(
    num_blocks=st.integers(5, 9),  # the worst one needs 5
    num_prompt=st.integers(1, 10),
    urgent=st.tuples(st.integers(1, 10), st.integers(1, 10)),  # prompt and output tokens
    max_num_seqs=st.integers(1, 4),
    swaps=st.booleans(),
)
def test_an_endless_stream_of_better_requests_does_not_starve_the_worst(
    num_blocks: int, num_prompt: int, urgent: tuple[int, int], max_num_seqs: int, swaps: bool
) -> None:
    policy = SWAP if swaps else RECOMPUTE
    machine = make_machine(num_blocks, 20, policy=policy, max_num_seqs=max_num_seqs)
    with patch.object(waiting_queue, "MAX_OVERTAKERS", MAX_OVERTAKERS):
        [worst] = add_family(machine, num_prompt, 10, 100, 0)
        machine.step()  # it runs already: it can be preempted, again and again
        for step in range(300):
            while len(machine.scheduler.waiting) < 5:
                add_family(machine, *urgent, -100, 0)
            machine.step(token_id=step)
            if worst.status is SequenceStatus.FINISHED:
                break
    assert worst.status is SequenceStatus.FINISHED
    event(f"preempted: {min(worst.num_preemptions, 2)}")
