"""The step loop: schedule, execute, advance.

Owns the scheduler, the worker and the sequences in flight. Called by `async_engine` from the
one thread that steps, and by tests. Knows no text, no HTTP and no asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from qwen_engine.config import EngineConfig, ModelConfig
from qwen_engine.loader import LoadProgress
from qwen_engine.sequence import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step produced for one request.

    `token_ids` are the new ones only. The end-of-sequence or stop token that finished the
    request is included: whoever turns ids into text strips special tokens.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Plain numbers of one moment; free + used = total, cached ones are free."""

    block_size: int
    num_total_blocks: int
    num_free_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    num_running: int
    num_waiting: int
    num_preemptions: int  # since start, as are the following
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int  # tokens
    blocks_allocated: int
    blocks_freed: int
    prompt_tokens: int  # computed or found in the prefix cache, counted once per request
    output_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Bytes really taken."""

    weights_bytes: int
    kv_cache_bytes: int
    process_bytes: int  # CPU: resident set; CUDA: allocator's peak


class LLMEngine:
    """Synchronous and single-threaded: every method but `stats` belongs to one thread."""

    config: EngineConfig
    model_config: ModelConfig
    measured: MemoryMeasured

    @classmethod
    def from_config(
        cls, config: EngineConfig, *, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> Self:
        """Load the weights and allocate the KV cache.

        Raises:
            ModelError: the folder cannot be served.
            ConfigError: the settings cannot be.
        """
        raise NotImplementedError

    @property
    def max_request_tokens(self) -> int:
        """Prompt plus output that one request may have: the model length or the whole pool."""
        raise NotImplementedError

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request.

        Raises:
            RequestError: it can never be served; the message has the figures.
        """
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks at once; unknown ids are fine."""
        raise NotImplementedError

    def step(self) -> list[StepOutput]:
        """Run one batch; at most one new token per request.

        Whatever the worker raises passes through; then call `reset_after_failure`.
        """
        raise NotImplementedError

    def has_unfinished(self) -> bool:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Return the numbers after the last change; safe from any thread."""
        raise NotImplementedError

    def reset_after_failure(self) -> list[str]:
        """After a step that raised: abort what was running, distrust the prefix cache.

        Waiting requests stay queued. Returns the ids that were aborted.
        """
        raise NotImplementedError
