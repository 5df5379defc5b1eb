"""The engine's numbers, as `/stats` and `/metrics` show them.

Made by `llm_engine` after every change, in its thread; frozen, so that any thread may read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Plain numbers of one moment; free + used = total, cached ones are free."""

    block_size: int
    num_total_blocks: int
    num_free_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    num_total_swap_blocks: int
    num_free_swap_blocks: int
    num_used_swap_blocks: int
    num_cached_swap_blocks: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_finished: int  # since start, as are the following; aborted ones too
    num_preemptions: int
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int  # tokens
    blocks_allocated: int
    blocks_freed: int
    blocks_swapped_out: int
    blocks_swapped_in: int
    prompt_tokens: int  # computed or found in the prefix cache, counted once per request
    output_tokens: int
    mm_cache_queries: int = 0  # pictures and videos looked up among those encoded
    mm_cache_hits: int = 0


def take_stats(scheduler: Scheduler, *, prompt_tokens: int, output_tokens: int) -> EngineStats:
    """Return the numbers of this moment; the two of tokens are counted by the step loop."""
    blocks, pool, swap = scheduler.blocks, scheduler.blocks.pool, scheduler.blocks.swap_pool
    return EngineStats(
        block_size=blocks.block_size,
        num_total_blocks=pool.num_total,
        num_free_blocks=pool.num_free,
        num_used_blocks=pool.num_used,
        num_cached_blocks=pool.num_cached,
        num_total_swap_blocks=swap.num_total,
        num_free_swap_blocks=swap.num_free,
        num_used_swap_blocks=swap.num_used,
        num_cached_swap_blocks=swap.num_cached,
        num_running=len(scheduler.running),
        num_waiting=scheduler.num_waiting,
        num_swapped=len(scheduler.swapped),
        num_finished=scheduler.num_finished,
        num_preemptions=scheduler.num_preemptions,
        prefix_cache_queries=scheduler.prefix_cache_queries,
        prefix_cache_hits=scheduler.prefix_cache_hits,
        blocks_allocated=pool.num_allocated_ever,
        blocks_freed=pool.num_freed_ever,
        blocks_swapped_out=blocks.num_swapped_out_ever,
        blocks_swapped_in=blocks.num_swapped_in_ever,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        mm_cache_queries=scheduler.encoder.queries,
        mm_cache_hits=scheduler.encoder.hits,
    )
