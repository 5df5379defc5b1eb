"""A pool of KV blocks: reference counts, the LRU free list, and which content is where.

Owns every block id of one memory, the device's or the host's. Called by `block_manager` only.
Knows no torch: it deals in ids, and what lies in the blocks is the worker's business.

After vLLM v1/core/block_pool.py: a free block keeps its content hash until it is handed out
again, so the free list is at the same time the cache's LRU order, and a hit on a free block
takes it out of the middle of the list.
"""

from __future__ import annotations

from collections.abc import Iterable


class Block:
    """A block and its links in the free list (both None while it is in use)."""

    __slots__ = ("block_id", "content_hash", "following", "num_references", "pool", "previous")

    def __init__(self, block_id: int, pool: BlockPool | None = None) -> None:
        self.block_id = block_id
        self.pool = pool
        self.num_references = 0
        self.content_hash: bytes | None = None
        self.previous: Block | None = None
        self.following: Block | None = None


class _FreeList:
    """Doubly linked through the blocks themselves; the head is the next to be handed out."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._end = Block(-1)  # before the head and after the tail: no special cases
        self._end.previous = self._end.following = self._end
        self.num_blocks = 0
        for block in blocks:
            self.push_tail(block)

    def push_tail(self, block: Block) -> None:
        self._insert_before(self._end, block)

    def push_head(self, block: Block) -> None:
        assert self._end.following is not None
        self._insert_before(self._end.following, block)

    def pop_head(self) -> Block:
        head = self._end.following
        assert head is not None
        assert head is not self._end, "callers compare with num_blocks first"
        self.remove(head)
        return head

    def remove(self, block: Block) -> None:
        previous, following = block.previous, block.following
        assert previous is not None
        assert following is not None
        previous.following, following.previous = following, previous
        block.previous = block.following = None
        self.num_blocks -= 1

    def _insert_before(self, successor: Block, block: Block) -> None:
        previous = successor.previous
        assert previous is not None
        previous.following = successor.previous = block
        block.previous, block.following = previous, successor
        self.num_blocks += 1


class BlockPool:
    """Every method leaves free + used = total, and cached ≤ free."""

    def __init__(self, num_blocks: int) -> None:
        self.num_total = num_blocks
        self.num_cached = 0  # free blocks that hold a hash
        self.num_allocated_ever = 0
        self.num_freed_ever = 0
        self._blocks = [Block(block_id, self) for block_id in range(num_blocks)]
        self._free = _FreeList(self._blocks)
        self._by_hash: dict[bytes, Block] = {}

    @property
    def num_free(self) -> int:
        return self._free.num_blocks

    @property
    def num_used(self) -> int:
        return self.num_total - self._free.num_blocks

    def block(self, block_id: int) -> Block:
        return self._blocks[block_id]

    def find(self, content_hash: bytes) -> Block | None:
        """Return the block that holds this content, in use or free; take nothing."""
        return self._by_hash.get(content_hash)

    def take_new(self) -> Block:
        """Return a block of unknown content; the caller has seen that one is free."""
        block = self._free.pop_head()
        if block.content_hash is not None:
            del self._by_hash[block.content_hash]
            block.content_hash = None
            self.num_cached -= 1
        block.num_references = 1
        self.num_allocated_ever += 1
        return block

    def take(self, block: Block) -> None:
        """Add a reference to a block for its content."""
        if block.num_references == 0:
            self._free.remove(block)
            self.num_cached -= 1
            self.num_allocated_ever += 1
        block.num_references += 1

    def release(self, block: Block) -> None:
        """Give up a reference; a block without any is free, its content to be found until reuse."""
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

    def touch(self, block: Block) -> None:
        """Note that a block's content was of use: a free one is handed out last from now on."""
        if block.num_references == 0:
            self._free.remove(block)
            self._free.push_tail(block)

    def offer(self, block: Block, content_hash: bytes) -> None:
        """Let the block be found by its content; of two with the same the first is kept."""
        if content_hash not in self._by_hash and block.content_hash is None:
            self._by_hash[content_hash] = block
            block.content_hash = content_hash

    def forget_contents(self) -> None:
        """Forget every hash: what the blocks hold is not to be trusted."""
        for block in self._by_hash.values():
            block.content_hash = None
        self._by_hash.clear()
        self.num_cached = 0
