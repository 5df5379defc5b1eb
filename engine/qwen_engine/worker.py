"""The device: the model, its KV cache and the sampler.

Built and called by `llm_engine`, one batch at a time. Decides nothing; knows sequences only as
far as a batch names them.
"""

from __future__ import annotations

import math
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from qwen_engine.batch import build_model_input
from qwen_engine.checkpoint_shapes import read_shapes
from qwen_engine.config import EngineConfig
from qwen_engine.encoder import SECONDS_ALONE, SHARE_OF_STEP, Encoder, allocate_tower
from qwen_engine.errors import ConfigError
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers import pages
from qwen_engine.layers.attention import build_backend, eight_bit
from qwen_engine.layers.gemm import MeasuredGemm, choose_gemm
from qwen_engine.layers.int8_gemm import choose_int8_gemm
from qwen_engine.loader import LoadProgress, load_weights
from qwen_engine.logprobs import score_tokens
from qwen_engine.memory import MemoryMeasured, MemoryMeter
from qwen_engine.model_config import ModelConfig
from qwen_engine.models.decoder import Decoder, KVCache
from qwen_engine.models.vision import PREFIX as VISION_PREFIX
from qwen_engine.preemption import PreemptionCosts
from qwen_engine.preemption_costs import measure_costs
from qwen_engine.sampler import Sampler
from qwen_engine.sequence import SamplingParams, ScheduledBatch, ScheduledSequence, Sequence
from qwen_engine.swap_space import SwapSpace

# Rows of logits held at once while a prompt is scored: 32 of 151,936 float32 are 19 MB.
_SCORED_ROWS = 32

GemmReport = dict[str, dict[str, str | int]]


class Worker:
    """Executes batches; owns every tensor."""

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        *,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        """Load the weights and allocate the KV cache.

        Raises:
            ModelError: the checkpoint cannot be loaded.
            ConfigError: no such device, or not enough memory on it.
        """
        self.config = config
        self._device = _open_device(config)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        model_config = replace(model_config, int8_weights=config.quantization == "int8")
        self._model = Decoder.allocate(
            model_config, max_len=config.max_model_len, dtype=self._dtype, device=self._device
        )
        self._tower = allocate_tower(config, model_config, dtype=self._dtype, device=self._device)
        targets = self._model.checkpoint_tensors(read_shapes(config.model_path))
        if self._tower is not None:
            targets |= self._tower.checkpoint_tensors()
        load_weights(
            config.model_path,
            targets,
            is_redundant=self._is_redundant,
            on_progress=on_progress,
        )
        self._encoder = Encoder(self._tower) if self._tower is not None else None
        library = self._find_library()
        self._gemm = self._choose_gemm(library)
        if self._tower is not None:
            self._tower.tune(self._gemm if config.quantization == "none" else None)
        self._caches = self._allocate_caches(model_config)
        self._swap_space = SwapSpace(self._caches, config.num_cpu_blocks)
        self._backend = build_backend(
            config.attention_backend, library=library, head_dim=model_config.head_dim
        )
        self._sampler = Sampler(
            seed=config.seed, eos_token_ids=model_config.eos_token_ids, device=self._device
        )
        self._warm_up()
        self._memory = MemoryMeter(self._device)

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> list[int]:
        """Compute the batch; return the next token of each entry that needs one, in order.

        Pictures are encoded afterwards, for a share of the time that the batch took.
        """
        started = time.monotonic()
        if self._encoder is not None:
            self._encoder.obey(batch.encoder)
        token_ids = self._compute(batch) if batch.entries else []
        if self._encoder is not None:
            took = time.monotonic() - started
            self._encoder.work(SHARE_OF_STEP * took if batch.entries else SECONDS_ALONE)
        return token_ids

    def take_encoded(self) -> list[bytes]:
        """Return, once, the keys of pictures whose embeddings are complete."""
        return self._encoder.take_ready() if self._encoder is not None else []

    def _compute(self, batch: ScheduledBatch) -> list[int]:
        self._swap_space.execute(batch.copies)
        step = build_model_input(batch, block_size=self.config.block_size, device=self._device)
        attention = self._backend.prepare(step.attention, dtype=self._dtype, device=self._device)
        positions = self._encoder.positions(batch) if self._encoder is not None else None
        hidden = self._model(
            step.token_ids,
            step.positions if positions is None else positions.to(self._device),
            slots=step.slots,
            attention=attention,
            caches=self._caches,
            visual=self._encoder.rows(batch) if self._encoder is not None else None,
        )
        self._score_prompts(hidden, batch)
        if not step.sampled:
            return []
        logits = self._model.logits(hidden.index_select(0, step.last_rows))
        return self._sampler.sample(logits, step.sampled)

    def _score_prompts(self, hidden: torch.Tensor, batch: ScheduledBatch) -> None:
        """Add the logprobs of the prompt tokens that the step's rows [num_tokens, …] predict."""
        first_row = 0
        for entry in batch.entries:
            if entry.sequence.needs_prompt_logprobs:
                rows = hidden[first_row : first_row + entry.num_tokens]
                self._score_prompt(rows, entry.sequence, entry.start)
            first_row += entry.num_tokens

    def _score_prompt(self, hidden: torch.Tensor, sequence: Sequence, start: int) -> None:
        found, num_tops = sequence.prompt_logprobs, sequence.params.prompt_logprobs or 0
        # What was scored before a preemption is computed again but not scored again.
        end = min(start + len(hidden), sequence.num_prompt_tokens - 1)
        for first in range(len(found), end, _SCORED_ROWS):
            last = min(first + _SCORED_ROWS, end)
            logits = self._model.logits(hidden[first - start : last - start])
            targets = sequence.token_ids[first + 1 : last + 1]
            found += score_tokens(logits, targets, [num_tops] * len(targets))

    def measure(self) -> MemoryMeasured:
        """Say what the tensors take, and what the process took at its peak."""
        weights, tower = (
            sum(p.nbytes for p in model.parameters()) if model is not None else 0
            for model in (self._model, self._tower)
        )
        caches = sum(part.nbytes for cache in self._caches for part in cache)
        meter = self._memory
        return MemoryMeasured(
            weights_bytes=weights,
            kv_cache_bytes=caches,
            process_bytes=meter.peak_bytes,
            swap_bytes=self._swap_space.num_bytes,
            rest_bytes=meter.rest_bytes,
            host_bytes=meter.host_bytes,
            vision_tower_bytes=tower,
            encoder_cache_bytes=self._encoder.most_bytes if self._encoder is not None else 0,
        )

    def measure_preemption(self) -> PreemptionCosts:
        """Time what swapping and recomputing take; only before anything else was executed."""
        with torch.inference_mode():
            return measure_costs(self.config, compute=self.execute, move=self._swap_space.execute)

    @property
    def gemm_report(self) -> GemmReport:
        """By number of rows: the way chosen, and the microseconds of each way tried."""
        return self._gemm.choice.report() if self._gemm is not None else {}

    def _is_redundant(self, name: str) -> bool:
        is_visual = self._tower is not None and name.startswith(VISION_PREFIX)
        return not is_visual and self._model.is_redundant(name)

    def _find_library(self) -> NativeLibrary | None:
        """Return the C++ library where it computes this model: bfloat16 on a CPU."""
        if self._device.type != "cpu" or self._dtype != torch.bfloat16:
            return None
        return NativeLibrary.find()

    @torch.inference_mode()
    def _choose_gemm(self, library: NativeLibrary | None) -> MeasuredGemm | None:
        """On a CPU, measure how products are best computed, and pack the weights for it."""
        if self._device.type != "cpu":
            return None
        weights, gemm = self._model.probe_weights(), None
        if self.config.quantization == "none":
            gemm = choose_gemm(weights, library)
        elif library is not None:
            gemm = choose_int8_gemm(weights, library)
        if gemm is not None:
            self._model.use(gemm)
        if library is not None:
            self._model.use_library(library)
        return gemm

    def _warm_up(self) -> None:
        """Run one token, so that libraries load their kernels before the first user waits.

        It writes to block 0, which nobody has read yet.
        """
        sequence = Sequence(
            request_id="warm-up",
            token_ids=[0],
            num_prompt_tokens=1,
            max_num_tokens=2,
            params=SamplingParams(max_tokens=1, temperature=0.0),
            block_table=array("i", [0]),
        )
        entry = ScheduledSequence(sequence, start=0, num_tokens=1, needs_token=True)
        self.execute(ScheduledBatch((entry,), num_tokens=1))

    def _allocate_caches(self, model_config: ModelConfig) -> list[KVCache]:
        config = self.config
        shape, dtype = kv_block(config, model_config)
        # Zeros, not whatever was there: padding is read before it is masked, and 0 × NaN is NaN.
        new_part = partial(
            pages.zeros, (config.num_gpu_blocks, *shape), dtype=dtype, device=self._device
        )
        try:
            return [(new_part(), new_part()) for _ in range(model_config.num_layers)]
        except RuntimeError as error:
            block = torch.Size(shape).numel() * dtype.itemsize
            total = 2 * model_config.num_layers * config.num_gpu_blocks * block
            raise ConfigError(
                "num_gpu_blocks",
                config.num_gpu_blocks,
                f"their {total:,} bytes cannot be allocated on {config.device}: {error}",
            ) from error


def kv_block(config: EngineConfig, model: ModelConfig) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of one layer's keys, or values, of one block."""
    if config.kv_cache_dtype == "auto":
        return (config.block_size, model.num_kv_heads, model.head_dim), getattr(torch, config.dtype)
    num_bytes = config.block_size * model.num_kv_heads * eight_bit.row_bytes(model.head_dim)
    return (num_bytes,), eight_bit.DTYPES[config.kv_cache_dtype]


def _open_device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", config.device, "torch sees no CUDA device: use device=cpu")
    if config.device == "cpu":
        torch.set_num_threads(_choose_num_threads(config))
    return torch.device(config.device)


def _choose_num_threads(config: EngineConfig) -> int:
    """Return the threads of torch: as told, else its own choice bounded by the CPU limit.

    torch counts the cores it may run on; a container's limit is a share of their time, and with
    a thread on every core of a large node the share is spent in a burst, then all are stopped.
    """
    if config.num_threads:
        return config.num_threads
    limit = read_cpu_limit(Path("/sys/fs/cgroup"))
    if limit is None or "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, min(torch.get_num_threads(), math.ceil(limit)))


def read_cpu_limit(cgroup: Path) -> float | None:
    """Return the cores a container may use (cgroup v2's cpu.max or v1's quota); None: no limit."""
    try:
        if (cgroup / "cpu.max").exists():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None  # no cgroup file system, or one that we do not know
