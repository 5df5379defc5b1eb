"""Swapping and forking: who goes, who comes back and when, and what is copied."""

from __future__ import annotations

import pytest

from qwen_engine.preemption import PreemptionCosts, PreemptionPolicy
from qwen_engine.sequence import SchedulingParams, Sequence, SequenceStatus
from tests.unit.scheduler_machine import Machine, make_machine


def run_until_swapped(machine: Machine) -> Sequence:
    for _ in range(100):
        machine.step()
        if machine.scheduler.swapped:
            return machine.scheduler.swapped.head
    raise AssertionError("nothing was swapped")


def test_the_newest_is_swapped_out_and_comes_back_where_it_was() -> None:
    machine = make_machine(6, 6)
    machine.add([1] * 8, max_tokens=12)
    newest = machine.add([2] * 8, max_tokens=12)
    assert run_until_swapped(machine) is newest
    computed = newest.num_computed_tokens
    assert computed > 8
    assert machine.blocks.swap_pool.num_used == -(-computed // 4)
    while newest.status is SequenceStatus.SWAPPED:
        machine.step()
    assert newest.num_computed_tokens == computed + 1, "nothing is computed again"
    assert machine.blocks.swap_pool.num_used == 0
    assert machine.blocks.num_swapped_in_ever > 0


def test_swapped_ones_come_back_before_new_ones_are_admitted() -> None:
    machine = make_machine(6, 6)
    machine.add([1] * 8, max_tokens=12)
    machine.add([2] * 8, max_tokens=12)
    swapped = run_until_swapped(machine)
    small = machine.add([3], max_tokens=1, scheduling=SchedulingParams(priority=-5))
    while swapped.status is SequenceStatus.SWAPPED:
        assert small.status is SequenceStatus.WAITING
        machine.step()


def test_a_full_swap_pool_means_recompute() -> None:
    machine = make_machine(6, 1)
    machine.add([1] * 8, max_tokens=12)
    newest = machine.add([2] * 8, max_tokens=12)
    while machine.scheduler.num_preemptions == 0:
        machine.step()
    assert newest.status is SequenceStatus.WAITING
    assert machine.blocks.swap_pool.num_used == machine.blocks.num_swapped_out_ever == 0


def test_aborting_a_swapped_one_frees_both_pools() -> None:
    machine = make_machine(6, 6)
    first = machine.add([1] * 8, max_tokens=12)
    machine.add([2] * 8, max_tokens=12)
    machine.abort(run_until_swapped(machine))
    assert machine.blocks.swap_pool.num_used == 0
    machine.abort(first)
    assert machine.blocks.pool.num_used == 0
    assert machine.step().entries == ()


def test_after_a_failed_step_what_was_swapped_is_computed_again() -> None:
    machine = make_machine(6, 6)
    first = machine.add([1] * 8, max_tokens=12)
    machine.add([2] * 8, max_tokens=12)
    swapped = run_until_swapped(machine)
    assert machine.scheduler.abort_running() == [first]
    machine.live.remove(first)
    machine.device.clear()
    machine.swap.clear()
    assert swapped.status is SequenceStatus.WAITING
    while machine.live:
        machine.step()


def test_swapped_out_prefixes_are_the_caches_second_tier() -> None:
    machine = make_machine(6, 6)
    machine.add([1] * 8, max_tokens=12)
    machine.add([2] * 9, max_tokens=11)
    swapped = run_until_swapped(machine)
    machine.abort(swapped)
    while machine.live:
        machine.step()
    machine.add([3] * 23, max_tokens=1)  # the whole pool: nothing is left on the device
    machine.step()
    again = machine.add([2] * 9, max_tokens=1)
    batch = machine.step()
    assert again.num_cached_tokens == 8
    assert len(batch.copies.swap_ins) == 2


def test_what_is_still_on_the_device_is_not_copied_back() -> None:
    machine = make_machine(7, 8)
    first = machine.add([1] * 8, max_tokens=20)
    machine.add([2] * 8, max_tokens=20)
    swapped = run_until_swapped(machine)
    machine.abort(first)
    batch = machine.step()
    num_blocks = machine.blocks.num_blocks_for(swapped.num_tokens)
    assert len(batch.copies.swap_ins) < num_blocks


@pytest.mark.parametrize(("seconds_per_token", "is_swapped"), [(0.06, True), (0.04, False)])
def test_the_cheaper_way_is_taken(seconds_per_token: float, is_swapped: bool) -> None:
    """8 tokens in 2 blocks: moving 2 × 2 × 0.1 s against computing 8 tokens."""
    policy = PreemptionPolicy("auto", PreemptionCosts(0.1, seconds_per_token))
    assert policy.prefers_swap(num_blocks=2, num_tokens=8) is is_swapped


def test_a_fork_shares_the_prompt_and_copies_only_the_block_it_writes_to() -> None:
    machine = make_machine(20, 0)
    parent = machine.add(list(range(10)))
    forks = [machine.add(list(range(10)), parent=parent) for _ in range(3)]
    batch = machine.step()
    assert [entry.sequence for entry in batch.entries] == [parent], "its prompt comes first"
    batch = machine.step()
    assert [entry.num_tokens for entry in batch.entries] == [1, 1, 1, 1]
    assert len(batch.copies.duplicates) == 3
    assert all(fork.block_table[:2] == parent.block_table[:2] for fork in forks)
    assert len({fork.block_table[2] for fork in (parent, *forks)}) == 4
    assert machine.blocks.pool.num_used == 2 + 4


def test_a_fork_whose_parent_is_gone_is_served_alone() -> None:
    machine = make_machine(20, 0)
    parent = machine.add(list(range(10)))
    fork = machine.add(list(range(10)), parent=parent, max_tokens=3)
    assert machine.scheduler.num_waiting == 2
    machine.abort(parent)
    machine.step()
    assert fork.num_computed_tokens == 10
    machine.abort(fork)


def test_a_fork_that_waits_for_its_parent_can_be_aborted() -> None:
    machine = make_machine(20, 0)
    parent = machine.add(list(range(10)))
    machine.abort(machine.add(list(range(10)), parent=parent))
    assert machine.scheduler.num_waiting == 1
    machine.step()


def test_a_fork_of_one_that_is_just_readmitted_does_not_copy_what_is_yet_to_be_written() -> None:
    machine = make_machine(11, 0)
    parent = machine.add(list(range(20)), max_tokens=4)
    fork = machine.add(list(range(20)), parent=parent, max_tokens=4)
    machine.step()
    machine.scheduler._release_held()
    machine.scheduler._preempt(parent)
    machine.blocks.forget_prefixes()
    twin = machine.add([*range(20), 7], max_tokens=4, scheduling=SchedulingParams(priority=-1))
    batch = machine.step()
    assert [entry.sequence for entry in batch.entries[:2]] == [twin, parent]
    assert batch.entries[2].sequence is fork
    assert batch.copies.duplicates == ()
