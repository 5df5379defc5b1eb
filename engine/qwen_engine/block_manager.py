"""Which sequence holds which KV blocks, on the device and in the swap space.

Owns both pools, the prefix cache over them, and the copies that its decisions make necessary:
the worker executes these before the step. Called by `scheduler` only. Knows no torch.

The device pool comes first in everything. The swap pool holds the blocks of sequences that were
swapped out; those that are free and full still count as cached, so it is the prefix cache's
second tier.
"""

from __future__ import annotations

from collections.abc import Sequence as Blocks

from qwen_engine.block_hash import ExtraKey, hash_block
from qwen_engine.block_pool import Block, BlockPool
from qwen_engine.errors import OutOfBlocksError
from qwen_engine.sequence import BlockCopies, Sequence
from qwen_engine.vision.spans import block_keys

ROOT_HASH = bytes(32)  # parent of every first block where one model only is ever asked


class BlockManager:
    """The block tables of all sequences. Every method leaves free + used = total in both pools."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int,
        enable_prefix_caching: bool,
        num_swap_blocks: int = 0,
        root_hash: bytes = ROOT_HASH,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.swap_pool = BlockPool(num_swap_blocks)
        self.num_swapped_out_ever = 0  # blocks copied
        self.num_swapped_in_ever = 0
        self._enable_prefix_caching = enable_prefix_caching
        self._root_hash = root_hash
        self._swap_outs: list[tuple[int, int]] = []
        self._swap_ins: list[tuple[int, int]] = []
        self._duplicates: list[tuple[int, int]] = []

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def take_copies(self) -> BlockCopies:
        """Return, once, what must be copied before the next step computes anything."""
        copies = BlockCopies(tuple(self._swap_outs), tuple(self._swap_ins), tuple(self._duplicates))
        self.num_swapped_out_ever += len(copies.swap_outs)
        self.num_swapped_in_ever += len(copies.swap_ins)
        self._swap_outs, self._swap_ins, self._duplicates = [], [], []
        return copies

    def match_prefix(self, sequence: Sequence) -> list[Block]:
        """Return the blocks, of either pool, that hold the sequence's beginning; take none.

        Never all of its tokens: the last one must be computed to have logits; none where the
        whole prompt's logits are wanted.
        """
        if not self._enable_prefix_caching or sequence.needs_prompt_logprobs:
            return []
        matched: list[Block] = []
        for content_hash in self._hashes(sequence, sequence.num_tokens - 1):
            block = self.pool.find(content_hash) or self.swap_pool.find(content_hash)
            if block is None:
                break
            matched.append(block)
        return matched

    def can_admit(self, sequence: Sequence, matched: Blocks[Block], *, headroom: int) -> bool:
        """Say whether all its tokens fit beside `headroom` blocks left free.

        Matched blocks that somebody uses on the device cost nothing; all others do.
        """
        shared = sum(block.pool is self.pool and block.num_references > 0 for block in matched)
        needed = self.num_blocks_for(sequence.num_tokens) - shared
        return needed + headroom <= self.pool.num_free

    def admit(self, sequence: Sequence, matched: Blocks[Block]) -> None:
        """Give a sequence without blocks the matched ones, and new ones for its other tokens."""
        assert not sequence.block_table
        self._share(sequence, matched)
        sequence.num_computed_tokens = len(matched) * self.block_size
        sequence.num_registered_blocks = len(matched)
        self._grow_or_raise(sequence)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens`, the next of which may then be written.

        Change nothing and say no if the pool has too few blocks.
        """
        missing = self.num_blocks_for(num_tokens) - len(sequence.block_table)
        shared = self._shared_tail(sequence)
        if missing + (shared is not None) > self.pool.num_free:
            return False
        if shared is not None:
            self._copy_on_write(sequence, shared)
        for _ in range(missing):
            sequence.block_table.append(self.pool.take_new().block_id)
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Offer the blocks that `num_tokens` fill to later sequences with the same prefix.

        May be called when the step that fills them is scheduled: within a step every layer
        writes all K and V before any query reads them. Tables are never rewritten.
        """
        first, end = sequence.num_registered_blocks, num_tokens // self.block_size
        if not self._enable_prefix_caching or end <= first:
            return
        hashes = self._hashes(sequence, num_tokens)
        for index in range(first, end):
            self.pool.offer(self.pool.block(sequence.block_table[index]), hashes[index])
        sequence.num_registered_blocks = end

    def free(self, sequence: Sequence) -> None:
        """Take all blocks from the sequence, of both pools, the last one first.

        So the deep end of a prefix is forgotten before its beginning, which more share.
        """
        self._free_device_blocks(sequence)
        self._free_swap_blocks(sequence)
        sequence.num_computed_tokens = 0

    def can_fork(self, sequence: Sequence, parent: Sequence, *, headroom: int) -> bool:
        """Say whether the sequence fits if it shares all it can of its parent's blocks."""
        shared = self._num_forked_tokens(sequence, parent)
        needed = self.num_blocks_for(sequence.num_tokens) - shared // self.block_size
        return needed + headroom <= self.pool.num_free

    def fork(self, sequence: Sequence, parent: Sequence) -> None:
        """Give a sequence without blocks its parent's prompt, with a half-filled last block.

        That one is copied as soon as either of them is about to write to it.
        """
        assert not sequence.block_table
        num_tokens = self._num_forked_tokens(sequence, parent)
        table = parent.block_table[: self.num_blocks_for(num_tokens)]
        self._share(sequence, [self.pool.block(block_id) for block_id in table])
        sequence.num_computed_tokens = num_tokens
        sequence.num_registered_blocks = num_tokens // self.block_size
        self._grow_or_raise(sequence)

    def swap_out(self, sequence: Sequence) -> bool:
        """Move what was computed to the swap pool; change nothing and say no if it is too full.

        A full block that lies there already is not copied again.
        """
        num_blocks = self.num_blocks_for(sequence.num_computed_tokens)
        hashes = self._known_hashes(sequence)
        found = [self.swap_pool.find(content_hash) for content_hash in hashes]
        held = [block for block in found if block is not None]
        missing = num_blocks - sum(block.num_references > 0 for block in held)
        if num_blocks == 0 or missing > self.swap_pool.num_free:
            return False
        for block in held:
            self.swap_pool.take(block)
        for index in range(num_blocks):
            kept = found[index] if index < len(found) else None
            content_hash = hashes[index] if index < len(hashes) else None
            kept = kept or self._copy_out(sequence.block_table[index], content_hash)
            sequence.swap_table.append(kept.block_id)
        self._free_device_blocks(sequence)
        return True

    def can_swap_in(self, sequence: Sequence, *, headroom: int) -> bool:
        """Say whether all its tokens fit beside `headroom` blocks left free."""
        shared = sum(
            block is not None and block.num_references > 0
            for block in map(self.pool.find, self._known_hashes(sequence))
        )
        needed = self.num_blocks_for(sequence.num_tokens) - shared
        return needed + headroom <= self.pool.num_free

    def swap_in(self, sequence: Sequence) -> None:
        """Move a sequence back to the device; full blocks that are still there are not copied."""
        hashes = self._known_hashes(sequence)
        found = [self.pool.find(content_hash) for content_hash in hashes]
        blocks = [
            (found[index] if index < len(found) else None) or self.swap_pool.block(block_id)
            for index, block_id in enumerate(sequence.swap_table)
        ]
        self._share(sequence, blocks)
        self._free_swap_blocks(sequence)
        self.register(sequence, sequence.num_computed_tokens)
        self._grow_or_raise(sequence)

    def forget_prefixes(self) -> None:
        """Forget every hash, and the copies not made: what the blocks hold is not to be trusted."""
        self.take_copies()
        self.pool.forget_contents()
        self.swap_pool.forget_contents()

    def _grow_or_raise(self, sequence: Sequence) -> None:
        if not self.grow(sequence, sequence.num_tokens):
            wanted = self.num_blocks_for(sequence.num_tokens)
            raise OutOfBlocksError(wanted=wanted, free=self.pool.num_free)

    def _share(self, sequence: Sequence, blocks: Blocks[Block]) -> None:
        """Append blocks to the table, those of the swap pool by way of a copy.

        References first: a new block could otherwise be one of those that are to be shared.
        """
        for block in blocks:
            if block.pool is self.pool:
                self.pool.take(block)
        for block in blocks:
            here = block if block.pool is self.pool else self._copy_in(block)
            sequence.block_table.append(here.block_id)

    def _copy_in(self, swapped: Block) -> Block:
        block = self.pool.take_new()
        self._swap_ins.append((swapped.block_id, block.block_id))
        self.swap_pool.touch(swapped)
        if swapped.content_hash is not None:
            self.pool.offer(block, swapped.content_hash)
        return block

    def _copy_out(self, block_id: int, content_hash: bytes | None) -> Block:
        block = self.swap_pool.take_new()
        self._swap_outs.append((block_id, block.block_id))
        if content_hash is not None:
            self.swap_pool.offer(block, content_hash)
        return block

    def _num_forked_tokens(self, sequence: Sequence, parent: Sequence) -> int:
        return min(parent.num_computed_tokens, sequence.num_tokens - 1)

    def _shared_tail(self, sequence: Sequence) -> int | None:
        """Return the index of the block that is written next, if others have it too."""
        index = sequence.num_computed_tokens // self.block_size
        if index >= len(sequence.block_table):
            return None
        block = self.pool.block(sequence.block_table[index])
        return index if block.num_references > 1 else None

    def _copy_on_write(self, sequence: Sequence, index: int) -> None:
        shared, copy = self.pool.block(sequence.block_table[index]), self.pool.take_new()
        self._duplicates.append((shared.block_id, copy.block_id))
        self.pool.release(shared)
        sequence.block_table[index] = copy.block_id

    def _free_device_blocks(self, sequence: Sequence) -> None:
        for block_id in reversed(sequence.block_table):
            self.pool.release(self.pool.block(block_id))
        del sequence.block_table[:]
        sequence.num_registered_blocks = 0

    def _free_swap_blocks(self, sequence: Sequence) -> None:
        for block_id in reversed(sequence.swap_table):
            self.swap_pool.release(self.swap_pool.block(block_id))
        del sequence.swap_table[:]

    def _known_hashes(self, sequence: Sequence) -> list[bytes]:
        """Return the hashes of the full blocks among those that were computed."""
        if not self._enable_prefix_caching:
            return []
        return self._hashes(sequence, sequence.num_computed_tokens)

    def _hashes(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Return the hashes of the blocks that `num_tokens` fill, each computed once ever."""
        hashes, size = sequence.block_hashes, self.block_size
        wanted = num_tokens // size
        for index in range(len(hashes), wanted):
            parent = hashes[index - 1] if index else self._root_hash
            tokens = sequence.token_ids[index * size : (index + 1) * size]
            hashes.append(hash_block(parent, tokens, _extra_keys(sequence, index, size)))
        return hashes[:wanted]


def _extra_keys(sequence: Sequence, index: int, block_size: int) -> list[ExtraKey]:
    """Return what a block's content depends on besides tokens; the chain hands it on."""
    keys: list[ExtraKey] = []
    salt = sequence.scheduling.cache_salt
    if index == 0 and salt is not None:
        # JSON may hold half a character.
        keys.append(("salt", salt.encode("utf-8", "surrogatepass")))
    if sequence.spans:
        media = [item.key for item in sequence.media]
        keys += block_keys(sequence.spans, media, index * block_size, block_size)
    return keys
