"""Who runs in the next step.

Owns the waiting queue, the running list and the block manager. Called by `llm_engine`. Returns
a plain `ScheduledBatch`; knows no torch and executes nothing.

There are no phases: a step has one budget of tokens; each running sequence, oldest first,
takes what its gap needs, and new ones fill the rest. Why nothing starves: sequences are
admitted in order of arrival and the newest is preempted first, so the running list is always
in order of arrival and the oldest is never preempted by another. No sequence may grow beyond
the whole pool, so the oldest always advances, finishes, and then another is the oldest.
"""

from __future__ import annotations

from collections import deque

from qwen_engine.block_manager import BlockManager
from qwen_engine.sequence import (
    FinishReason,
    ScheduledBatch,
    ScheduledSequence,
    Sequence,
    SequenceStatus,
)


class Scheduler:
    """Decides; nothing here depends on how a batch is executed."""

    def __init__(
        self, blocks: BlockManager, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        self.blocks = blocks
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.prefix_cache_queries = 0  # tokens
        self.prefix_cache_hits = 0  # tokens
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence whose `max_num_tokens` the whole pool can hold."""
        assert sequence.max_num_tokens <= self.blocks.num_total * self.blocks.block_size
        self.waiting.append(sequence)

    def schedule(self) -> ScheduledBatch:
        """Choose the next step's tokens and give their sequences the blocks they need.

        Never empty while a sequence is unfinished. The batch must be executed and then handed
        to `advance`; if executing it fails, `abort_running` is the way back.
        """
        entries: list[ScheduledSequence] = []
        num_preemptions = self.num_preemptions
        budget = self._schedule_running(entries, self._max_num_batched_tokens)
        if self.num_preemptions == num_preemptions:  # else the room is for those that run
            budget = self._schedule_waiting(entries, budget)
        assert entries or not (self.running or self.waiting), "nothing can run: live-lock"
        return ScheduledBatch(tuple(entries), self._max_num_batched_tokens - budget)

    def advance(self, batch: ScheduledBatch) -> None:
        """Note that K and V of the batch are in the cache."""
        for entry in batch.entries:
            entry.sequence.num_computed_tokens = entry.start + entry.num_tokens

    def finish(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Take out a sequence that is done (or, without a reason, aborted); free its blocks."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self.blocks.free(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def abort_running(self) -> list[Sequence]:
        """Abort what runs and forget the prefix cache: a step failed half-way through."""
        aborted = list(self.running)
        for sequence in aborted:
            self.finish(sequence, None)
        self.blocks.forget_prefixes()
        return aborted

    def _schedule_running(self, entries: list[ScheduledSequence], budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            if not self._make_room(sequence, num_tokens):
                break
            entries.append(self._entry(sequence, num_tokens))
            budget -= num_tokens
            index += 1
        return budget

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Preempt from the newest on until the blocks suffice; False if it was itself hit."""
        while not self.blocks.grow(sequence, sequence.num_computed_tokens + num_tokens):
            victim = self.running[-1]
            assert len(self.running) > 1, "one sequence alone fits by admission"
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Free the blocks and queue it first; what it has said so far becomes its prompt.

        Its full blocks keep their hashes, so what nobody overwrites is not computed again.
        """
        self.running.remove(sequence)
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _schedule_waiting(self, entries: list[ScheduledSequence], budget: int) -> int:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            matched = self.blocks.match_prefix(sequence)
            # One that was preempted returns only when each that runs has a free block left to
            # grow into: else the two would take turns in throwing away each other's work.
            headroom = len(self.running) if sequence.num_preemptions else 0
            if not self.blocks.can_admit(sequence, matched, headroom=headroom):
                break
            self._admit(sequence, matched)
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            entries.append(self._entry(sequence, num_tokens))
            budget -= num_tokens
        return budget

    def _admit(self, sequence: Sequence, matched: list[int]) -> None:
        self.waiting.popleft()
        self.blocks.admit(sequence, matched)
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_cache_queries += sequence.num_tokens
            self.prefix_cache_hits += sequence.num_cached_tokens

    def _entry(self, sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        self.blocks.register(sequence, end)
        return ScheduledSequence(sequence, start, num_tokens, end == sequence.num_tokens)
