"""Who holds which KV block: reference counts, the LRU free list and the prefix cache.

Owns every block id of the pool. Called by `scheduler` only. Knows no torch: it deals in ids,
and what lies in the blocks is the worker's business.

After vLLM v1/core/block_pool.py: a free block keeps its content hash until it is handed out
again, so the free list is at the same time the cache's LRU order, and a hit on a free block
takes it out of the middle of the list.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as TokenIds
from hashlib import sha256

from qwen_engine.errors import OutOfBlocksError
from qwen_engine.sequence import Sequence

ROOT_HASH = bytes(32)  # parent of every first block


def hash_block(parent: bytes, token_ids: TokenIds[int]) -> bytes:
    """Return the content hash of a full block: it stands for these tokens after that parent.

    SHA-256, because whoever can make two prompts collide reads another user's context
    (vllm#12621); chained, because equal tokens after different prefixes are different K and V.
    """
    return sha256(parent + array("q", token_ids).tobytes()).digest()


class _Block:
    """A block and its links in the free list (both None while it is in use)."""

    __slots__ = ("block_id", "content_hash", "following", "num_references", "previous")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.num_references = 0
        self.content_hash: bytes | None = None
        self.previous: _Block | None = None
        self.following: _Block | None = None


class _FreeList:
    """Doubly linked through the blocks themselves; the head is the next to be handed out."""

    def __init__(self, blocks: TokenIds[_Block]) -> None:
        self._end = _Block(-1)  # before the head and after the tail: no special cases
        self._end.previous = self._end.following = self._end
        self.num_blocks = 0
        for block in blocks:
            self.push_tail(block)

    def push_tail(self, block: _Block) -> None:
        self._insert_before(self._end, block)

    def push_head(self, block: _Block) -> None:
        assert self._end.following is not None
        self._insert_before(self._end.following, block)

    def pop_head(self) -> _Block:
        head = self._end.following
        assert head is not None
        assert head is not self._end, "callers compare with num_blocks first"
        self.remove(head)
        return head

    def remove(self, block: _Block) -> None:
        previous, following = block.previous, block.following
        assert previous is not None
        assert following is not None
        previous.following, following.previous = following, previous
        block.previous = block.following = None
        self.num_blocks -= 1

    def _insert_before(self, successor: _Block, block: _Block) -> None:
        previous = successor.previous
        assert previous is not None
        previous.following = successor.previous = block
        block.previous, block.following = previous, successor
        self.num_blocks += 1


class BlockManager:
    """The pool. Every method leaves free + used = total."""

    def __init__(self, num_blocks: int, *, block_size: int, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.num_total = num_blocks
        self.num_cached = 0  # free blocks that hold a hash
        self.num_allocated_ever = 0
        self.num_freed_ever = 0
        self._enable_prefix_caching = enable_prefix_caching
        self._blocks = [_Block(block_id) for block_id in range(num_blocks)]
        self._free = _FreeList(self._blocks)
        self._by_hash: dict[bytes, _Block] = {}

    @property
    def num_free(self) -> int:
        return self._free.num_blocks

    @property
    def num_used(self) -> int:
        return self.num_total - self._free.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """Return the ids of the cached blocks that the sequence begins with, taking none.

        Never all of its tokens: the last one must be computed to have logits; none where the
        whole prompt's logits are wanted.
        """
        if not self._enable_prefix_caching or sequence.needs_prompt_logprobs:
            return []
        matched: list[int] = []
        for content_hash in self._hashes(sequence, sequence.num_tokens - 1):
            block = self._by_hash.get(content_hash)
            if block is None:
                break
            matched.append(block.block_id)
        return matched

    def can_admit(self, sequence: Sequence, matched: TokenIds[int], *, headroom: int) -> bool:
        """Say whether all its tokens fit beside `headroom` blocks left free.

        Matched blocks that somebody uses cost nothing; those that are free do.
        """
        shared = sum(self._blocks[block_id].num_references > 0 for block_id in matched)
        needed = self.num_blocks_for(sequence.num_tokens) - shared
        return needed + headroom <= self.num_free

    def admit(self, sequence: Sequence, matched: TokenIds[int]) -> None:
        """Give a sequence without blocks the matched ones, and new ones for its other tokens."""
        assert not sequence.block_table
        for block_id in matched:
            self._take_cached(self._blocks[block_id])
            sequence.block_table.append(block_id)
        sequence.num_computed_tokens = len(matched) * self.block_size
        sequence.num_registered_blocks = len(matched)
        if not self.grow(sequence, sequence.num_tokens):
            raise OutOfBlocksError(
                wanted=self.num_blocks_for(sequence.num_tokens), free=self.num_free
            )

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens`; change nothing and say no if it can't."""
        missing = self.num_blocks_for(num_tokens) - len(sequence.block_table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            sequence.block_table.append(self._take_new())
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Offer the blocks that `num_tokens` fill to later sequences with the same prefix.

        May be called when the step that fills them is scheduled: within a step every layer
        writes all K and V before any query reads them. Of two blocks with the same content the
        first is kept; tables are never rewritten.
        """
        if not self._enable_prefix_caching:
            return
        first = sequence.num_registered_blocks
        hashes = self._hashes(sequence, num_tokens)
        for index in range(first, len(hashes)):
            block = self._blocks[sequence.block_table[index]]
            if hashes[index] not in self._by_hash:
                self._by_hash[hashes[index]] = block
                block.content_hash = hashes[index]
        sequence.num_registered_blocks = max(first, len(hashes))

    def free(self, sequence: Sequence) -> None:
        """Take all blocks from the sequence, the last one first.

        So the deep end of a prefix is forgotten before its beginning, which more share.
        """
        for block_id in reversed(sequence.block_table):
            self._release(self._blocks[block_id])
        del sequence.block_table[:]
        sequence.num_registered_blocks = 0
        sequence.num_computed_tokens = 0

    def forget_prefixes(self) -> None:
        """Forget every hash: what the blocks hold is not to be trusted."""
        for block in self._by_hash.values():
            block.content_hash = None
        self._by_hash.clear()
        self.num_cached = 0

    def _hashes(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Return the hashes of the blocks that `num_tokens` fill, each computed once ever."""
        hashes, size = sequence.block_hashes, self.block_size
        wanted = num_tokens // size
        for index in range(len(hashes), wanted):
            parent = hashes[index - 1] if index else ROOT_HASH
            tokens = sequence.token_ids[index * size : (index + 1) * size]
            hashes.append(hash_block(parent, tokens))
        return hashes[:wanted]

    def _take_new(self) -> int:
        block = self._free.pop_head()
        if block.content_hash is not None:
            del self._by_hash[block.content_hash]
            block.content_hash = None
            self.num_cached -= 1
        block.num_references = 1
        self.num_allocated_ever += 1
        return block.block_id

    def _take_cached(self, block: _Block) -> None:
        if block.num_references == 0:
            self._free.remove(block)
            self.num_cached -= 1
            self.num_allocated_ever += 1
        block.num_references += 1

    def _release(self, block: _Block) -> None:
        assert block.num_references > 0
        block.num_references -= 1
        if block.num_references:
            return
        self.num_freed_ever += 1
        if block.content_hash is None:
            self._free.push_head(block)  # nothing to lose: hand it out before any cached one
        else:
            self._free.push_tail(block)
            self.num_cached += 1
