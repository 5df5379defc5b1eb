"""Swapping and forking: where every block is at every moment, and that every sequence ends.

The device is played by two dictionaries, block → what lies in it. A step does to them what the
worker would do to tensors, and whoever reads a block finds there what it must hold, or the test
fails: a copy forgotten, made too late, or from a block already handed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from qwen_engine import waiting_queue
from qwen_engine.block_manager import BlockManager
from qwen_engine.block_pool import BlockPool
from qwen_engine.preemption import NO_COSTS, PreemptionCosts, PreemptionPolicy
from qwen_engine.scheduler import Scheduler
from qwen_engine.sequence import (
    SamplingParams,
    ScheduledBatch,
    SchedulingParams,
    Sequence,
    SequenceStatus,
)

SWAP = PreemptionPolicy("swap", NO_COSTS)


@dataclass
class Machine:
    """A scheduler, and memory in which each slot names the tokens that led to it."""

    scheduler: Scheduler
    device: dict[int, object] = field(default_factory=dict)  # slot → content
    swap: dict[int, object] = field(default_factory=dict)
    live: list[Sequence] = field(default_factory=list)
    num_added: int = 0

    @property
    def blocks(self) -> BlockManager:
        return self.scheduler.blocks

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 20,
        scheduling: SchedulingParams | None = None,
        parent: Sequence | None = None,
    ) -> Sequence:
        self.num_added += 1
        sequence = Sequence(
            request_id=str(self.num_added),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            max_num_tokens=len(prompt) + max_tokens,
            params=SamplingParams(max_tokens=max_tokens),
            scheduling=scheduling or SchedulingParams(),
            parent=parent,
        )
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence, None)
        self.live.remove(sequence)

    def step(self, token_id: int = 7) -> ScheduledBatch:
        """Schedule, then copy, write and read as the worker does; the same token for everybody."""
        batch = self.scheduler.schedule()
        self._copy(batch)
        for entry in batch.entries:
            for position in range(entry.start, entry.start + entry.num_tokens):
                self.device[self._slot(entry.sequence, position)] = self._content(
                    entry.sequence, position
                )
        for entry in batch.entries:
            for position in range(entry.start + entry.num_tokens):
                found = self.device.get(self._slot(entry.sequence, position))
                assert found == self._content(entry.sequence, position)
        self.scheduler.advance(batch)
        for entry in batch.entries:
            if entry.needs_token:
                self._append(entry.sequence, token_id)
        self.check()
        return batch

    def _copy(self, batch: ScheduledBatch) -> None:
        copies, size = batch.copies, self.blocks.block_size
        for pairs, source, target in (
            (copies.swap_outs, self.device, self.swap),
            (copies.swap_ins, self.swap, self.device),
            (copies.duplicates, self.device, self.device),
        ):
            for block, other in pairs:
                for offset in range(size):
                    if block * size + offset in source:
                        target[other * size + offset] = source[block * size + offset]

    def _append(self, sequence: Sequence, token_id: int) -> None:
        sequence.token_ids.append(token_id)
        if sequence.num_tokens >= sequence.max_num_tokens:
            self.scheduler.finish(sequence, "length")
            self.live.remove(sequence)

    def _slot(self, sequence: Sequence, position: int) -> int:
        size = self.blocks.block_size
        return sequence.block_table[position // size] * size + position % size

    def _content(self, sequence: Sequence, position: int) -> object:
        return sequence.scheduling.cache_salt, tuple(sequence.token_ids[: position + 1])

    def check(self) -> None:
        """Every block is in one place, every sequence in one queue, and the numbers say so."""
        scheduler, blocks = self.scheduler, self.blocks
        check_pool(blocks.pool, [list(s.block_table) for s in self.live])
        check_pool(blocks.swap_pool, [list(s.swap_table) for s in self.live])
        queues = (scheduler.running, scheduler.waiting, scheduler.swapped, scheduler.held)
        queued = [sequence for queue in queues for sequence in queue]
        assert sorted(s.request_id for s in queued) == sorted(s.request_id for s in self.live)
        for sequence in queued:
            is_swapped = sequence.status is SequenceStatus.SWAPPED
            assert is_swapped == bool(sequence.swap_table)
            assert bool(sequence.block_table) == (sequence.status is SequenceStatus.RUNNING)
        assert scheduler.running == sorted(scheduler.running, key=waiting_queue.rank_of)


def check_pool(pool: BlockPool, tables: list[list[int]]) -> None:
    held = [block_id for table in tables for block_id in table]
    assert all(len(set(table)) == len(table) for table in tables)
    for block_id in range(pool.num_total):
        assert pool.block(block_id).num_references == held.count(block_id)
    assert pool.num_used == len(set(held))
    assert pool.num_free + pool.num_used == pool.num_total
    assert 0 <= pool.num_cached <= pool.num_free
    assert pool.num_allocated_ever - pool.num_freed_ever == pool.num_used


def make_machine(
    num_blocks: int,
    num_swap_blocks: int,
    *,
    block_size: int = 4,
    budget: int = 1000,
    policy: PreemptionPolicy = SWAP,
    sharing: bool = True,
) -> Machine:
    blocks = BlockManager(
        num_blocks,
        block_size=block_size,
        enable_prefix_caching=sharing,
        num_swap_blocks=num_swap_blocks,
    )
    scheduler = Scheduler(
        blocks, max_num_batched_tokens=budget, max_num_seqs=100, preemption=policy
    )
    return Machine(scheduler)


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
    machine.scheduler._release_forks()
    machine.scheduler._preempt(parent)
    machine.blocks.forget_prefixes()
    twin = machine.add([*range(20), 7], max_tokens=4, scheduling=SchedulingParams(priority=-1))
    batch = machine.step()
    assert [entry.sequence for entry in batch.entries[:2]] == [twin, parent]
    assert batch.entries[2].sequence is fork
    assert batch.copies.duplicates == ()


_requests = st.lists(
    st.tuples(
        st.integers(3, 20),  # prompt tokens
        st.integers(4, 20),  # output tokens
        st.integers(0, 15).map(lambda step: max(0, step - 6)),  # the step it arrives at
        st.integers(0, 2),  # which of three prefixes it shares
        st.integers(-1, 1),  # priority
        st.integers(0, 2),  # forks of it
        st.sampled_from([None, None, 5, 12]),  # aborted so many steps after it arrived
    ),
    min_size=5,
    max_size=10,
)


@settings(max_examples=200, deadline=None)
@given(
    requests=_requests,
    pools=st.tuples(st.integers(0, 8), st.sampled_from([3, 40, 40])),  # device: beyond one request
    block_size=st.sampled_from([4, 1, 16]),
    budget=st.sampled_from([1000, 16, 3, 1]),
    mode=st.sampled_from(["swap", "swap", "recompute", "mixed"]),
    sharing=st.booleans(),
    fails_at=st.sampled_from([None, 3, 17]),
)
def test_every_request_ends_and_reads_what_it_wrote_whatever_happens(
    requests: list[tuple[int, int, int, int, int, int, int | None]],
    pools: tuple[int, int],
    block_size: int,
    budget: int,
    mode: str,
    sharing: bool,
    fails_at: int | None,
) -> None:
    policy = {
        "swap": SWAP,
        "recompute": PreemptionPolicy("recompute", NO_COSTS),
        # swaps up to 12 tokens in blocks of 4: victims of both kinds in one run
        "mixed": PreemptionPolicy("auto", PreemptionCosts(0.5, 0.3)),
    }[mode]
    machine = make_machine(
        -(-40 // block_size) + pools[0],
        pools[1],
        block_size=block_size,
        budget=budget,
        policy=policy,
        sharing=sharing,
    )
    scheduler = machine.scheduler
    aborts: dict[int, list[Sequence]] = {}
    work = sum((-(-(p + o) // budget) + 2 * (p + o)) * (1 + f) for p, o, *_, f, _ in requests)
    for step in range(16 + work * 4):
        for num_prompt, num_output, arrival, kind, priority, num_forks, abort in requests:
            if arrival != step:
                continue
            prompt = [kind * 100 + i for i in range(num_prompt)]
            scheduling = SchedulingParams(priority=priority, cache_salt=[None, "a"][kind == 2])
            settings_ = {"max_tokens": num_output, "scheduling": scheduling}
            parent = machine.add(prompt, **settings_)
            family = [parent, *(machine.add(prompt, parent=parent, **settings_)
                                for _ in range(num_forks))]  # fmt: skip
            if abort is not None:
                aborts.setdefault(step + abort, []).extend(family)
        for sequence in aborts.get(step, []):
            if sequence in machine.live:
                machine.abort(sequence)
                machine.check()
        if step == fails_at:
            fail_a_step(machine)
        batch = machine.step(token_id=step)
        assert sum(entry.num_tokens for entry in batch.entries) <= budget
        assert not (batch.copies.swap_outs and batch.copies.swap_ins)
        if step > 15 and not machine.live:
            break
    assert not machine.live, "starved"
    event(f"swapped in: {scheduler.blocks.num_swapped_in_ever > 0}")
    event(f"preempted: {scheduler.num_preemptions > 0}")
    assert scheduler.blocks.pool.num_used == scheduler.blocks.swap_pool.num_used == 0


def fail_a_step(machine: Machine) -> None:
    """The worker raises before it has done anything, and memory holds nothing to rely on."""
    machine.scheduler.schedule()
    for sequence in machine.scheduler.abort_running():
        machine.live.remove(sequence)
    machine.device.clear()
    machine.swap.clear()
    machine.check()
