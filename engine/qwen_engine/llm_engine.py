"""The step loop: schedule, execute, advance.

Owns the scheduler, the worker and the sequences in flight. Called by `async_engine` from the
one thread that steps, and by tests. Knows no text, no HTTP and no asyncio.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import Protocol, Self

from qwen_engine.block_hash import hash_root
from qwen_engine.block_manager import BlockManager
from qwen_engine.config import EngineConfig
from qwen_engine.encoder_cache import check_media
from qwen_engine.engine_stats import EngineStats, take_stats
from qwen_engine.errors import ConfigError, DuplicateRequestError
from qwen_engine.host_memory import StartMemory
from qwen_engine.limits import check_request, max_request_tokens
from qwen_engine.loader import LoadProgress
from qwen_engine.memory import MemoryMeasured
from qwen_engine.model_config import ModelConfig
from qwen_engine.preemption import NO_COSTS, RECOMPUTE, PreemptionCosts, PreemptionPolicy
from qwen_engine.scheduler import Scheduler
from qwen_engine.sequence import (
    DEFAULT_SCHEDULING,
    FinishReason,
    SamplingParams,
    ScheduledBatch,
    SchedulingParams,
    Sequence,
    TokenLogprobs,
)
from qwen_engine.start_times import StartTimes
from qwen_engine.vision.prompt import MediaPrompt
from qwen_engine.worker import GemmReport, Worker

log = logging.getLogger(__name__)


class Executor(Protocol):
    """What the step loop asks of the worker."""

    def execute(self, batch: ScheduledBatch) -> list[int]:
        """Return the next token of each entry that needs one, in order."""
        ...

    def take_encoded(self) -> list[bytes]:
        """Return, once, the keys of pictures whose embeddings are complete."""
        ...

    def measure(self) -> MemoryMeasured: ...

    def grow_rest(self, num_bytes: int) -> None: ...

    def measure_preemption(self) -> PreemptionCosts: ...

    @property
    def gemm_report(self) -> GemmReport:
        """How products are computed, and what was measured to choose; empty: nothing to choose."""
        ...


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
    started: float  # time.monotonic() of the first step that it was in
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id, if they were asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # in the first output, if asked for


class LLMEngine:
    """Synchronous and single-threaded: every method but `stats` belongs to one thread."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig, executor: Executor) -> None:
        self.config = config
        self.model_config = model_config
        self._executor = executor
        blocks = BlockManager(
            config.num_gpu_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_swap_blocks=config.num_cpu_blocks,
            root_hash=hash_root(f"{config.model_path} {config.dtype}"),
        )
        self._scheduler = Scheduler(
            blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            preemption=self._preemption_policy(),
            encoder_cache_tokens=config.encoder_cache_tokens,
        )
        self._sequences: dict[str, Sequence] = {}  # unfinished, by request id
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._stats = self._take_stats()

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
        memory: StartMemory | None = None,
        times: StartTimes | None = None,
    ) -> Self:
        """Load the weights and allocate the KV cache; see `Worker`.

        Raises:
            ModelError: the folder cannot be served.
            ConfigError: the settings cannot be.
        """
        model_config = ModelConfig.from_folder(config.model_path)
        if config.max_model_len > model_config.max_len:
            why = f"this model was made for at most {model_config.max_len} tokens"
            raise ConfigError("max_model_len", config.max_model_len, why)
        worker = Worker(config, model_config, on_progress=on_progress, memory=memory, times=times)
        return cls(config, model_config, worker)

    @property
    def measured(self) -> MemoryMeasured:
        """Bytes taken, as `MemoryMeasured` says."""
        return self._executor.measure()

    def grow_rest(self, num_bytes: int) -> None:
        """Count as taken at rest what the process made after the start, and keeps."""
        self._executor.grow_rest(num_bytes)

    @property
    def gemm_report(self) -> GemmReport:
        """By number of rows: the way chosen, and the microseconds of each way tried."""
        return self._executor.gemm_report

    @property
    def max_request_tokens(self) -> int:
        """Prompt plus output that one request may have: the model length or the whole pool."""
        return max_request_tokens(self.config)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: TokenIds[int],
        params: SamplingParams,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
        *,
        media: MediaPrompt | None = None,
    ) -> None:
        """Queue a request. Where max_tokens leads beyond the limit, it will end there ("length").

        Raises:
            RequestError: it can never be served; the message has the figures.
        """
        if request_id in self._sequences:
            raise DuplicateRequestError(request_id)
        vocab_size = self.model_config.vocab_size
        check_request(prompt_token_ids, params, config=self.config, vocab_size=vocab_size)
        pictures = MediaPrompt([]) if media is None else media
        check_media(pictures.media, max_tokens=self.config.encoder_cache_tokens)
        sequence = Sequence(
            request_id=request_id,
            token_ids=list(prompt_token_ids),
            num_prompt_tokens=len(prompt_token_ids),
            max_num_tokens=min(len(prompt_token_ids) + params.max_tokens, self.max_request_tokens),
            params=params,
            scheduling=scheduling,
            parent=self._find_parent(prompt_token_ids, pictures, scheduling),
            spans=pictures.spans,
            media=pictures.media,
        )
        self._sequences[request_id] = sequence
        self._scheduler.add(sequence)
        self._stats = self._take_stats()

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks at once; unknown ids are fine."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.finish(sequence, None)
            self._stats = self._take_stats()

    def step(self) -> list[StepOutput]:
        """Run one batch; at most one new token per request.

        Whatever the worker raises passes through; then call `reset_after_failure`.
        """
        batch = self._scheduler.schedule()
        if not (batch.entries or batch.encoder.is_some or self._scheduler.encoder.has_pending):
            return []
        now = time.monotonic()
        for entry in batch.entries:
            entry.sequence.started = entry.sequence.started or now
        token_ids = self._executor.execute(batch)
        self._scheduler.encoder.mark_ready(self._executor.take_encoded())
        self._scheduler.advance(batch)
        chosen = [entry.sequence for entry in batch.entries if entry.needs_token]
        outputs = [
            self._append(sequence, token_id)
            for sequence, token_id in zip(chosen, token_ids, strict=True)
        ]
        self._stats = self._take_stats()
        return outputs

    def has_unfinished(self) -> bool:
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """Return the numbers after the last change; safe from any thread."""
        return self._stats

    def reset_after_failure(self) -> list[str]:
        """After a step that raised: abort what was running, distrust the prefix cache.

        Waiting requests stay queued. Returns the ids that were aborted.
        """
        aborted = [sequence.request_id for sequence in self._scheduler.abort_running()]
        for request_id in aborted:
            del self._sequences[request_id]
        self._stats = self._take_stats()
        return aborted

    def _find_parent(
        self, prompt_token_ids: TokenIds[int], media: MediaPrompt, scheduling: SchedulingParams
    ) -> Sequence | None:
        """Return the request it forks, if that is here and may be shared with it."""
        parent = self._sequences.get(scheduling.fork_of or "")
        if parent is None or parent.scheduling.cache_salt != scheduling.cache_salt:
            return None
        prompt = parent.token_ids[: parent.num_prompt_tokens]
        is_same = [item.key for item in parent.media] == [item.key for item in media.media]
        return parent if is_same and prompt == list(prompt_token_ids) else None

    def _preemption_policy(self) -> PreemptionPolicy:
        if self.config.num_cpu_blocks == 0:
            return RECOMPUTE
        mode = self.config.preemption_mode
        if mode != "auto":
            return PreemptionPolicy(mode, NO_COSTS)
        costs = self._executor.measure_preemption()
        log.info(
            "Preemption: moving a block takes %.0f µs one way, computing a token %.0f µs",
            costs.seconds_per_block * 1e6,
            costs.seconds_per_token * 1e6,
        )
        return PreemptionPolicy(mode, costs)

    def _append(self, sequence: Sequence, token_id: int) -> StepOutput:
        is_first = sequence.num_output_tokens == 0
        if is_first:
            self._prompt_tokens += sequence.num_prompt_tokens
        new: tuple[int, ...] = ()
        reason: FinishReason | None = "length"
        if sequence.num_tokens < sequence.max_num_tokens:  # else only the prompt was to be scored
            new = (token_id,)
            sequence.token_ids.append(token_id)
            self._output_tokens += 1
            reason = self._finish_reason(sequence, token_id)
        if reason is not None:
            self._scheduler.finish(sequence, reason)
            del self._sequences[sequence.request_id]
        return StepOutput(
            request_id=sequence.request_id,
            token_ids=new,
            finish_reason=reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            started=sequence.started,
            logprobs=(scored,) if new and (scored := sequence.last_logprobs) else (),
            prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
        )

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        params = sequence.params
        if sequence.num_output_tokens >= params.min_tokens:
            is_eos = token_id in self.model_config.eos_token_ids and not params.ignore_eos
            if is_eos or token_id in params.stop_token_ids:
                return "stop"
        return "length" if sequence.num_tokens >= sequence.max_num_tokens else None

    def _take_stats(self) -> EngineStats:
        return take_stats(
            self._scheduler, prompt_tokens=self._prompt_tokens, output_tokens=self._output_tokens
        )
