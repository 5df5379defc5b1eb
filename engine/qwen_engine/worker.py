"""The device: the model, its KV cache and the sampler.

Built and called by `llm_engine`, one batch at a time. Decides nothing; knows sequences only as
far as a batch names them.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import replace

import torch

from qwen_engine.batch import build_model_input
from qwen_engine.checkpoint_shapes import read_shapes
from qwen_engine.config import EngineConfig
from qwen_engine.device import open_device
from qwen_engine.encoder import SECONDS_ALONE, SHARE_OF_STEP, Encoder, allocate_tower
from qwen_engine.errors import ConfigError
from qwen_engine.host_memory import StartMemory
from qwen_engine.kernels.largest import Largest, largest
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.layers import pages
from qwen_engine.layers.attention import build_backend, choose_kernel, eight_bit
from qwen_engine.layers.gemm import MeasuredGemm, choose_gemm
from qwen_engine.layers.int8_gemm import choose_int8_gemm
from qwen_engine.loader import LoadProgress, load_weights
from qwen_engine.logprobs import score_tokens
from qwen_engine.memory import MemoryMeasured, MemoryMeter
from qwen_engine.model_config import ModelConfig
from qwen_engine.models.attention import KVCache
from qwen_engine.models.decoder import Decoder
from qwen_engine.models.vision import PREFIX as VISION_PREFIX
from qwen_engine.preemption import PreemptionCosts
from qwen_engine.preemption_costs import measure_costs
from qwen_engine.sampler import Sampler
from qwen_engine.sequence import SamplingParams, ScheduledBatch, ScheduledSequence, Sequence
from qwen_engine.start_times import StartTimes
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
        memory: StartMemory | None = None,
        times: StartTimes | None = None,
    ) -> None:
        """Load the weights and allocate the KV cache.

        memory: untouched, for a CPU; what it lacks is reserved here. times: told of each stage.

        Raises:
            ModelError: the checkpoint cannot be loaded.
            ConfigError: no such device, or not enough memory on it.
        """
        self.config = config
        times = times or StartTimes()
        self._device = open_device(config)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        model_config = replace(model_config, int8_weights=config.quantization == "int8")
        weights = None if memory is None else memory.weights
        self._model = Decoder.allocate(
            model_config,
            max_len=config.max_model_len,
            dtype=self._dtype,
            device=self._device,
            memory=weights,
        )
        self._tower = allocate_tower(
            config, model_config, dtype=self._dtype, device=self._device, memory=weights
        )
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
        times.mark("weights")
        self._cache_memory = None if memory is None else memory.cache
        self._caches = self._allocate_caches(model_config)
        times.mark("KV cache")
        library = self._find_library()
        self._gemm = self._choose_gemm(library)
        choose_kernel(library, model_config.head_dim)
        times.mark("measuring products")
        self._adopt(self._gemm, library)
        if library is not None and self._gemm is not None:
            self._model.use_native_layers(
                self._caches, block_size=config.block_size, library=library, gemm=self._gemm
            )
        if self._tower is not None:
            self._tower.tune(self._gemm if config.quantization == "none" else None)
        times.mark("packing weights")
        self._swap_space = SwapSpace(self._caches, config.num_cpu_blocks)
        self._backend = build_backend(
            config.attention_backend, library=library, head_dim=model_config.head_dim
        )
        self._sampler = Sampler(
            seed=config.seed,
            eos_token_ids=model_config.eos_token_ids,
            device=self._device,
            largest=largest if library is None else Largest(library),
        )
        self._warm_up()
        self._memory = MemoryMeter(self._device, self._missing_bytes)
        times.mark("first step")

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
        is_scored = any(entry.sequence.needs_prompt_logprobs for entry in batch.entries)
        hidden = self._model(
            step.token_ids,
            step.positions if positions is None else positions.to(self._device),
            slots=step.slots,
            attention=attention,
            caches=self._caches,
            visual=self._encoder.rows(batch) if self._encoder is not None else None,
            wanted=None if is_scored else step.last_rows,
        )
        if is_scored:
            self._score_prompts(hidden, batch)
            hidden = hidden.index_select(0, step.last_rows)
        if not step.sampled:
            return []
        logits = self._model.logits(hidden)
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

    def _missing_bytes(self) -> int:
        return self._cache_memory.missing_bytes() if self._cache_memory is not None else 0

    def grow_rest(self, num_bytes: int) -> None:
        """Count as taken at rest what the process made after the start, and keeps."""
        self._memory.grow_rest(num_bytes)

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
        """On a CPU, measure how products are best computed."""
        if self._device.type != "cpu":
            return None
        weights = self._model.probe_weights()
        if self.config.quantization == "none":
            return choose_gemm(weights, library)
        return None if library is None else choose_int8_gemm(weights, library)

    @torch.inference_mode()
    def _adopt(self, gemm: MeasuredGemm | None, library: NativeLibrary | None) -> None:
        """Pack the weights for the products, and compute in C++ what lies between them."""
        if gemm is not None:
            self._model.use(gemm)
        if library is not None:
            self._model.use_library(library)

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
        config, number = self.config, 2 * model_config.num_layers
        block, dtype = kv_block(config, model_config)
        shape = (config.num_gpu_blocks, *block)
        num_bytes = number * math.prod(shape) * dtype.itemsize
        # Zeros, not whatever was there: padding is read before it is masked, and 0 × NaN is NaN.
        try:
            memory = self._cache_memory
            if self._device.type == "cpu" and (memory is None or memory.num_bytes < num_bytes):
                memory = self._cache_memory = pages.reserve(num_bytes)
            parts = pages.zeros(number, shape, dtype=dtype, device=self._device, memory=memory)
            return list(zip(parts[::2], parts[1::2], strict=True))
        except RuntimeError as error:
            raise ConfigError(
                "num_gpu_blocks",
                config.num_gpu_blocks,
                f"their {num_bytes:,} bytes cannot be allocated on {config.device}: {error}",
            ) from error


def kv_block(config: EngineConfig, model: ModelConfig) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of one layer's keys, or values, of one block."""
    if config.kv_cache_dtype == "auto":
        return (config.block_size, model.num_kv_heads, model.head_dim), getattr(torch, config.dtype)
    num_bytes = config.block_size * model.num_kv_heads * eight_bit.row_bytes(model.head_dim)
    return (num_bytes,), eight_bit.DTYPES[config.kv_cache_dtype]
