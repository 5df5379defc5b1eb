"""Who may not be scheduled yet: forks, until their parent's prompt is computed; pictures' readers.

Owned by the scheduler, which asks before each step who is ready. Holds pictures in the encoder's
cache for its sequences, and lets go of them when they have read them. Knows no blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from qwen_engine.encoder_cache import EncoderCache
from qwen_engine.sequence import Sequence, SequenceStatus


class HeldSequences:
    """In order of arrival here."""

    def __init__(self, encoder: EncoderCache) -> None:
        self._encoder = encoder
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def add(self, sequence: Sequence) -> None:
        """Keep a sequence until it is ready."""
        self._sequences.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is here."""
        self._sequences.remove(sequence)

    def take_ready(self) -> list[Sequence]:
        """Take out those that need wait no more, for a parent or for pictures."""
        held, self._sequences = self._sequences, []
        ready: list[Sequence] = []
        for sequence in held:
            is_ready = _is_parent_done(sequence) and self._has_media(sequence)
            (ready if is_ready else self._sequences).append(sequence)
        return ready

    def count_overtaken_by(self, admitted: Sequence) -> None:
        """Note that those who wait for their parent's prompt are overtaken like any other."""
        for fork in self._sequences:
            fork.num_overtakers += fork.arrival < admitted.arrival

    def release_media(self, sequence: Sequence) -> None:
        """Let go of a sequence's pictures, if it holds any; it need not be here itself."""
        if sequence.holds_media:
            sequence.holds_media = False
            for item in sequence.media:
                self._encoder.release(item.key)

    def forget_media(self) -> None:
        """Have all pictures of those here encoded again: a step failed half-way through."""
        for sequence in self._sequences:
            self.release_media(sequence)
        self._encoder.forget_all()

    def _has_media(self, sequence: Sequence) -> bool:
        """Say whether all its pictures are encoded; hold them, if there is room, until they are.

        All or none: two that each held some of theirs could wait for each other.
        """
        if not sequence.spans:
            return True
        if not sequence.holds_media:
            if not self._encoder.hold_all(sequence.media):
                return False
            sequence.holds_media = True
        return all(self._encoder.is_ready(item.key) for item in sequence.media)


def _is_parent_done(sequence: Sequence) -> bool:
    """Say whether its parent's prompt is computed, or its parent is gone."""
    parent = sequence.parent
    if parent is None:
        return True
    is_computed = parent.num_computed_tokens >= parent.num_prompt_tokens
    return is_computed or parent.status is SequenceStatus.FINISHED
