"""The block pool: free + used = total, no block in two places, the prefix cache tells no lies."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qwen_engine.block_manager import BlockManager
from qwen_engine.errors import OutOfBlocksError
from qwen_engine.sequence import SamplingParams, Sequence

_ids = count()


def make_sequence(token_ids: list[int]) -> Sequence:
    return Sequence(
        request_id=str(next(_ids)),
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        max_num_tokens=10_000,
        params=SamplingParams(max_tokens=100),
    )


def make_manager(num_blocks: int, block_size: int = 4, *, sharing: bool = True) -> BlockManager:
    return BlockManager(num_blocks, block_size=block_size, enable_prefix_caching=sharing)


def admit(manager: BlockManager, token_ids: list[int]) -> Sequence:
    """Admit and compute the whole prompt, as a step would."""
    sequence = make_sequence(token_ids)
    manager.admit(sequence, manager.match_prefix(sequence))
    manager.register(sequence, sequence.num_tokens)
    sequence.num_computed_tokens = sequence.num_tokens
    return sequence


def free_list(manager: BlockManager) -> list[int]:
    """Walk the free list both ways: its links must agree."""
    end = manager.pool._free._end
    forward, backward = [], []
    block = end.following
    while block is not end:
        assert block is not None
        forward.append(block.block_id)
        block = block.following
    block = end.previous
    while block is not end:
        assert block is not None
        backward.append(block.block_id)
        block = block.previous
    assert forward == backward[::-1]
    return forward


def test_blocks_needed_are_rounded_up() -> None:
    manager = make_manager(8, block_size=16)
    assert [manager.num_blocks_for(n) for n in (0, 1, 16, 17, 127)] == [0, 1, 1, 2, 8]


def test_growing_takes_blocks_only_at_block_borders() -> None:
    manager = make_manager(3)
    sequence = admit(manager, [1, 2, 3])
    assert len(sequence.block_table) == 1
    assert manager.grow(sequence, 4)
    assert len(sequence.block_table) == 1
    assert manager.grow(sequence, 5)
    assert len(sequence.block_table) == 2


def test_growing_beyond_the_pool_changes_nothing() -> None:
    manager = make_manager(2)
    sequence = admit(manager, [1, 2, 3])
    assert not manager.grow(sequence, 9)
    assert len(sequence.block_table) == 1
    assert manager.pool.num_free == 1


def test_admitting_more_than_is_free_says_so() -> None:
    manager = make_manager(1)
    sequence = make_sequence(list(range(9)))
    assert not manager.can_admit(sequence, [], headroom=0)
    with pytest.raises(OutOfBlocksError, match="3 blocks with 1 free"):
        manager.admit(sequence, [])


def test_headroom_must_be_left_free() -> None:
    manager = make_manager(3)
    sequence = make_sequence([1, 2, 3, 4, 5])
    assert manager.can_admit(sequence, [], headroom=1)
    assert not manager.can_admit(sequence, [], headroom=2)


def test_an_equal_prefix_is_shared_while_in_use() -> None:
    manager = make_manager(8)
    first = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert first.block_table[:2] == second.block_table[:2]
    assert first.block_table[2] != second.block_table[2]
    assert manager.pool.num_used == 4


def test_a_freed_prefix_is_found_again() -> None:
    manager = make_manager(8)
    first = admit(manager, [1, 2, 3, 4, 5])
    blocks = list(first.block_table)
    manager.free(first)
    assert manager.pool.num_free == 8
    assert manager.pool.num_cached == 1
    second = make_sequence([1, 2, 3, 4, 6])
    assert [block.block_id for block in manager.match_prefix(second)] == blocks[:1]


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    manager = make_manager(8)
    admit(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    again = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert again.num_registered_blocks == 2
    fresh = make_sequence([1, 2, 3, 4, 5, 6, 7, 8])
    assert len(manager.match_prefix(fresh)) == 1


def test_equal_tokens_after_another_prefix_are_not_shared() -> None:
    manager = make_manager(8)
    admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    other = make_sequence([0, 2, 3, 4, 5, 6, 7, 8, 9])
    assert manager.match_prefix(other) == []


def test_without_sharing_nothing_matches() -> None:
    manager = make_manager(8, sharing=False)
    manager.free(admit(manager, [1, 2, 3, 4, 5]))
    assert manager.match_prefix(make_sequence([1, 2, 3, 4, 5])) == []
    assert manager.pool.num_cached == 0


def test_a_block_handed_out_again_is_forgotten() -> None:
    manager = make_manager(2)
    manager.free(admit(manager, [1, 2, 3, 4, 5]))
    admit(manager, [6, 7, 8, 9, 10])
    assert manager.match_prefix(make_sequence([1, 2, 3, 4, 5])) == []


def test_the_deep_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    manager = make_manager(3)
    manager.free(admit(manager, list(range(12))))
    admit(manager, [50, 51])
    assert len(manager.match_prefix(make_sequence(list(range(12))))) == 2


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    manager = make_manager(4)
    old, new = [1, 2, 3, 4, 0], [5, 6, 7, 8, 0]
    manager.free(admit(manager, old))
    manager.free(admit(manager, new))
    manager.free(admit(manager, old))  # used again
    admit(manager, [9] * 11)  # three blocks: two empty ones and one that is cached
    assert len(manager.match_prefix(make_sequence(old))) == 1
    assert manager.match_prefix(make_sequence(new)) == []


def test_blocks_without_content_are_handed_out_before_cached_ones() -> None:
    manager = make_manager(4)
    manager.free(admit(manager, [1, 2, 3, 4, 5]))
    admit(manager, [9] * 12)
    assert len(manager.match_prefix(make_sequence([1, 2, 3, 4, 5]))) == 1


def test_forgetting_prefixes_leaves_the_blocks_usable() -> None:
    manager = make_manager(4)
    manager.free(admit(manager, [1, 2, 3, 4, 5]))
    manager.forget_prefixes()
    assert manager.pool.num_cached == 0
    assert manager.match_prefix(make_sequence([1, 2, 3, 4, 5])) == []
    admit(manager, list(range(16)))
    assert manager.pool.num_free == 0


@settings(max_examples=60, stateful_step_count=60)
class PoolMachine(RuleBasedStateMachine):
    """Random admissions, growth, preemption-like freeing; a model of contents checks every hit."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = make_manager(10, block_size=2)
        self.live: list[Sequence] = []
        self.contents: dict[int, tuple[int, ...]] = {}  # block → all tokens up to its end

    def _write(self, sequence: Sequence) -> None:
        """Note what a step would write: the model of what lies in each full block."""
        for index in range(sequence.num_tokens // 2):
            block_id = sequence.block_table[index]
            self.contents[block_id] = tuple(sequence.token_ids[: 2 * index + 2])
        sequence.num_computed_tokens = sequence.num_tokens

    @rule(token_ids=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def admit(self, token_ids: list[int]) -> None:
        sequence = make_sequence(token_ids)
        matched = self.manager.match_prefix(sequence)
        for index, block in enumerate(matched):
            assert self.contents[block.block_id] == tuple(token_ids[: 2 * index + 2])
        assert len(matched) * 2 < len(token_ids)
        if not self.manager.can_admit(sequence, matched, headroom=0):
            return
        self.manager.admit(sequence, matched)
        self.manager.register(sequence, sequence.num_tokens)
        self._write(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token_id=st.integers(0, 2))
    def append(self, data: Any, token_id: int) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        if self.manager.grow(sequence, sequence.num_tokens + 1):
            sequence.token_ids.append(token_id)
            self.manager.register(sequence, sequence.num_tokens)
            self._write(sequence)
        else:
            assert self.manager.pool.num_free == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.manager.free(sequence)

    @rule()
    def forget(self) -> None:
        self.manager.forget_prefixes()
        for sequence in self.live:
            sequence.num_registered_blocks = len(sequence.block_table)  # distrusted for good

    @invariant()
    def free_and_used_make_the_total(self) -> None:
        free = free_list(self.manager)
        used = {block_id for sequence in self.live for block_id in sequence.block_table}
        assert len(free) == self.manager.pool.num_free
        assert len(used) == self.manager.pool.num_used
        assert set(free).isdisjoint(used)
        assert len(set(free)) + len(used) == self.manager.pool.num_total

    @invariant()
    def references_count_the_tables(self) -> None:
        tables = [block_id for sequence in self.live for block_id in sequence.block_table]
        for block in self.manager.pool._blocks:
            assert block.num_references == tables.count(block.block_id)

    @invariant()
    def no_table_has_a_block_twice(self) -> None:
        for sequence in self.live:
            assert len(set(sequence.block_table)) == len(sequence.block_table)

    @invariant()
    def cached_blocks_are_free_ones_with_a_hash(self) -> None:
        hashed = [block for block in self.manager.pool._blocks if block.content_hash is not None]
        assert {b.content_hash for b in hashed} == set(self.manager.pool._by_hash)
        assert self.manager.pool.num_cached == sum(b.num_references == 0 for b in hashed)

    @invariant()
    def allocated_less_freed_is_used(self) -> None:
        manager = self.manager
        assert (
            manager.pool.num_allocated_ever - manager.pool.num_freed_ever == manager.pool.num_used
        )


TestPool = PoolMachine.TestCase
