"""Who is next: the order of sequences that wait, and the bound on being overtaken.

Used by `scheduler`. A lower priority goes first, as in vLLM; among equals the order of arrival
decides. So that a stream of better requests starves nobody, each later arrival that goes before a
sequence is counted, and one that was overtaken MAX_OVERTAKERS times goes before all that were
not. Hence the bound: at most MAX_OVERTAKERS later arrivals are admitted before any sequence.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from qwen_engine.sequence import Sequence

# As many as run at once on a small card: overtaking costs a request about one full batch.
MAX_OVERTAKERS = 64


def rank_of(sequence: Sequence) -> tuple[bool, int, int]:
    """Return the sequence's place among all; the least goes first and is preempted last."""
    may_wait = sequence.num_overtakers < MAX_OVERTAKERS
    return may_wait, sequence.scheduling.priority if may_wait else 0, sequence.arrival


class WaitingQueue:
    """Sequences in order of rank; adding is a binary search and a move of pointers."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence:
        return self._sequences[0]

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=rank_of)

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[bisect_left(self._sequences, rank_of(sequence), key=rank_of)]

    def pop_head(self) -> Sequence:
        """Take the first, and note whom it overtakes."""
        head = self._sequences.pop(0)
        # All of one kind wait in order of arrival: the usual case, in which nobody is overtaken.
        if self._sequences and rank_of(self._sequences[-1])[:2] != rank_of(head)[:2]:
            self._count_overtaken(head)
        return head

    def _count_overtaken(self, head: Sequence) -> None:
        has_changed = False
        for sequence in self._sequences:
            if sequence.arrival < head.arrival:
                sequence.num_overtakers += 1
                has_changed |= sequence.num_overtakers == MAX_OVERTAKERS
        if has_changed:
            self._sequences.sort(key=rank_of)
