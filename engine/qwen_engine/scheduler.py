"""Who runs in the next step.

Owns the queues, the running list and the block manager. Called by `llm_engine`. Returns a plain
`ScheduledBatch`; knows no torch and executes nothing.

There are no phases: a step has one budget of tokens; each running sequence, in order of rank
(`waiting_queue`: priority, then arrival), takes what its gap needs. If nobody was preempted for
that, swapped sequences come back, and when none is left new ones fill the rest.

Admission: all of a prompt must fit, and leave 1 % of the pool free for those that run; one that
was preempted must also leave each of them a block to grow into, else the two would take turns in
throwing away each other's work. Where nothing runs neither is asked.

Why nothing starves: the running list is in order of rank and its end is preempted first, so its
head is never preempted by another. No sequence may grow beyond the whole pool, so the head always
advances, finishes, and then another is the head. No new sequence passes a swapped one, and how
many later arrivals pass a waiting one is bounded (MAX_OVERTAKERS; for a fork, beside those that
are admitted while its parent's prompt is computed). One passed that often is ahead of all that
were not, so later arrivals can no longer preempt it either, and it comes to be the head.
"""

from __future__ import annotations

from bisect import insort

from qwen_engine.block_manager import BlockManager
from qwen_engine.encoder_cache import EncoderCache
from qwen_engine.held_sequences import HeldSequences
from qwen_engine.preemption import RECOMPUTE, PreemptionPolicy
from qwen_engine.sequence import (
    FinishReason,
    ScheduledBatch,
    ScheduledSequence,
    Sequence,
    SequenceStatus,
)
from qwen_engine.waiting_queue import WaitingQueue, rank_of

WATERMARK_DIVISOR = 100  # 1 % of the pool, as in vLLM 0.5's block manager; none in small pools


class Scheduler:
    """Decides; nothing here depends on how a batch is executed."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        preemption: PreemptionPolicy = RECOMPUTE,
        encoder_cache_tokens: int = 0,
    ) -> None:
        self.blocks = blocks
        self.encoder = EncoderCache(encoder_cache_tokens)
        self.waiting = WaitingQueue()
        self.swapped = WaitingQueue()
        self.held = HeldSequences(self.encoder)
        self.running: list[Sequence] = []  # in order of rank
        self.num_preemptions = 0
        self.num_finished = 0  # sequences, aborted ones too
        self.prefix_cache_queries = 0  # tokens
        self.prefix_cache_hits = 0  # tokens
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._preemption = preemption
        self._watermark = blocks.pool.num_total // WATERMARK_DIVISOR
        self._num_arrivals = 0
        self._num_steps = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.held)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence whose `max_num_tokens` the whole pool can hold."""
        assert sequence.max_num_tokens <= self.blocks.pool.num_total * self.blocks.block_size
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        if sequence.parent is None and not sequence.spans:
            self.waiting.add(sequence)
        else:
            self.held.add(sequence)

    def schedule(self) -> ScheduledBatch:
        """Choose the next step's tokens and give their sequences the blocks they need.

        Without tokens only where nobody is unfinished, or all wait for pictures. The batch must
        be executed and then handed to `advance`; if executing it fails, `abort_running` is the
        way back.
        """
        entries: list[ScheduledSequence] = []
        num_preemptions = self.num_preemptions
        self._num_steps += 1
        self._release_held()
        budget = self._schedule_running(entries, self._max_num_batched_tokens)
        if self.num_preemptions == num_preemptions:  # else the room is for those that run
            budget = self._schedule_queue(self.swapped, entries, budget)
            if not self.swapped:
                budget = self._schedule_queue(self.waiting, entries, budget)
        is_idle = not (self.running or self.waiting or self.swapped or self.held)
        assert entries or is_idle or self.encoder.has_pending, "nothing can run: live-lock"
        num_tokens = self._max_num_batched_tokens - budget
        return ScheduledBatch(
            tuple(entries), num_tokens, self.blocks.take_copies(), self.encoder.take_orders()
        )

    def advance(self, batch: ScheduledBatch) -> None:
        """Note that K and V of the batch are in the cache."""
        for entry in batch.entries:
            entry.sequence.num_computed_tokens = entry.start + entry.num_tokens
            if entry.sequence.holds_media and not entry.sequence.needs_media:
                self.held.release_media(entry.sequence)

    def finish(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Take out a sequence that is done (or, without a reason, aborted); free its blocks."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.SWAPPED:
            self.swapped.remove(sequence)
        elif sequence in self.held:
            self.held.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        self.blocks.free(sequence)
        self.held.release_media(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        self.num_finished += 1

    def abort_running(self) -> list[Sequence]:
        """Abort what runs and trust no block: a step failed half-way through.

        What was swapped out is computed again: its copies may not have been made.
        """
        aborted = list(self.running)
        for sequence in aborted:
            self.finish(sequence, None)
        while self.swapped:
            self._queue_again(self.swapped.pop_head())
        for sequence in list(self.waiting):
            if sequence.holds_media:
                self.waiting.remove(sequence)
                self.held.add(sequence)
        self.held.forget_media()
        self.blocks.forget_prefixes()
        return aborted

    def _release_held(self) -> None:
        for sequence in self.held.take_ready():
            self.waiting.add(sequence)

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
        """Preempt from the end on until the blocks suffice; False if it was itself hit."""
        while not self.blocks.grow(sequence, sequence.num_computed_tokens + num_tokens):
            victim = self.running[-1]
            assert len(self.running) > 1, "one sequence alone fits by admission"
            victim.num_overtakers += victim.arrival < sequence.arrival
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take its blocks: to the swap pool if that is cheaper and has room, else for good."""
        self.running.remove(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        num_tokens = sequence.num_computed_tokens
        num_blocks = self.blocks.num_blocks_for(num_tokens)
        is_cheaper = self._preemption.prefers_swap(num_blocks=num_blocks, num_tokens=num_tokens)
        if is_cheaper and self.blocks.swap_out(sequence):
            sequence.status = SequenceStatus.SWAPPED
            self.swapped.add(sequence)
        else:
            self._queue_again(sequence)

    def _queue_again(self, sequence: Sequence) -> None:
        """Have it computed again; what it has said so far becomes its prompt.

        Its full blocks keep their hashes, so what nobody overwrites is not computed again.
        """
        self.blocks.free(sequence)
        sequence.status = SequenceStatus.WAITING
        if sequence.spans and not sequence.holds_media:
            self.held.add(sequence)
        else:
            self.waiting.add(sequence)

    def _schedule_queue(
        self, queue: WaitingQueue, entries: list[ScheduledSequence], budget: int
    ) -> int:
        while queue and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = queue.head
            if not self._place(sequence):
                break
            queue.pop_head()
            if queue is self.waiting:
                self.held.count_overtaken_by(sequence)
            sequence.status = SequenceStatus.RUNNING
            sequence.step_of_admission = self._num_steps
            insort(self.running, sequence, key=rank_of)
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            entries.append(self._entry(sequence, num_tokens))
            budget -= num_tokens
        return budget

    def _place(self, sequence: Sequence) -> bool:
        """Give a sequence blocks for all its tokens; change nothing and say no if it must wait."""
        headroom = self._headroom(sequence)
        if sequence.status is SequenceStatus.SWAPPED:
            if not self.blocks.can_swap_in(sequence, headroom=headroom):
                return False
            self.blocks.swap_in(sequence)
            return True
        if not self._admit(sequence, headroom):
            return False
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_cache_queries += sequence.num_tokens
            self.prefix_cache_hits += sequence.num_cached_tokens
        return True

    def _admit(self, sequence: Sequence, headroom: int) -> bool:
        parent = sequence.parent
        if parent is not None and self._can_be_shared(parent):
            if not self.blocks.can_fork(sequence, parent, headroom=headroom):
                return False
            self.blocks.fork(sequence, parent)
        else:
            matched = self.blocks.match_prefix(sequence)
            if not self.blocks.can_admit(sequence, matched, headroom=headroom):
                return False
            self.blocks.admit(sequence, matched)
        sequence.parent = None
        return True

    def _can_be_shared(self, parent: Sequence) -> bool:
        """Say whether what it has computed is in its blocks already, before this step runs.

        One admitted in this step may count on blocks that the step is yet to fill.
        """
        is_running = parent.status is SequenceStatus.RUNNING
        return is_running and parent.step_of_admission < self._num_steps

    def _headroom(self, sequence: Sequence) -> int:
        """Return the blocks that must stay free beside it."""
        if not self.running:
            return 0
        to_grow = len(self.running) if sequence.num_preemptions else 0
        return max(self._watermark, to_grow)

    def _entry(self, sequence: Sequence, num_tokens: int) -> ScheduledSequence:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        self.blocks.register(sequence, end)
        return ScheduledSequence(sequence, start, num_tokens, end == sequence.num_tokens)
