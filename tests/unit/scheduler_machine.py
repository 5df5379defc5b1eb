"""A scheduler whose device is played by dictionaries, so that what lies in each block is known.

A step does to them what the worker does to tensors, and whoever reads a block finds there what it
must hold, or the test fails: a copy forgotten, made too late, or from a block already handed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qwen_engine import waiting_queue
from qwen_engine.block_manager import BlockManager
from qwen_engine.block_pool import BlockPool
from qwen_engine.preemption import NO_COSTS, PreemptionPolicy
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
        # The worker sorts each kind into runs, so within one kind the order must not matter.
        assert {a for a, _ in copies.duplicates}.isdisjoint(b for _, b in copies.duplicates)
        for pairs in (copies.swap_outs, copies.swap_ins, copies.duplicates):
            assert len({target for _, target in pairs}) == len(pairs)
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
    max_num_seqs: int = 100,
) -> Machine:
    blocks = BlockManager(
        num_blocks,
        block_size=block_size,
        enable_prefix_caching=sharing,
        num_swap_blocks=num_swap_blocks,
    )
    scheduler = Scheduler(
        blocks, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, preemption=policy
    )
    return Machine(scheduler)
