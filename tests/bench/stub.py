"""An engine whose model is played: what is left is the cost of the loop around it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from qwen_engine.batch import build_model_input
from qwen_engine.config import EngineConfig
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.model_config import parse_model_config
from qwen_engine.preemption import NO_COSTS, PreemptionCosts
from qwen_engine.sequence import ScheduledBatch
from qwen_engine.worker import GemmReport, MemoryMeasured

LOWEST_ID = 300  # above special tokens
VOCAB_SIZE = 49_152  # SmolLM2's, whose tokenizer turns the ids into text
MODEL = parse_model_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 1 << 20,
        "vocab_size": VOCAB_SIZE,
        "eos_token_id": 0,
    }
)
_CPU = torch.device("cpu")


class StubWorker:
    """Packs each batch as the real worker does, then says ids that follow from positions."""

    gemm_report: GemmReport = {}  # noqa: RUF012 -- never changed

    def __init__(
        self, block_size: int, *, vocab_size: int = VOCAB_SIZE, step_seconds: float = 0.0
    ) -> None:
        """step_seconds: how long the model is made to take, without the processor."""
        self._step_seconds = step_seconds
        self._block_size = block_size
        self._num_ids = vocab_size - LOWEST_ID
        self.pack_seconds = 0.0  # in all

    def execute(self, batch: ScheduledBatch) -> list[int]:
        start = time.perf_counter()
        build_model_input(batch, block_size=self._block_size, device=_CPU)
        self.pack_seconds += time.perf_counter() - start
        if self._step_seconds:  # even a sleep of nothing gives the processor away
            time.sleep(self._step_seconds)
        return [
            (entry.start * 7919 + entry.num_tokens) % self._num_ids + LOWEST_ID
            for entry in batch.entries
            if entry.needs_token
        ]

    def take_encoded(self) -> list[bytes]:
        return []

    def grow_rest(self, num_bytes: int) -> None:
        """Nothing is held."""

    def measure(self) -> MemoryMeasured:
        return MemoryMeasured(0, 0, 0)

    def measure_preemption(self) -> PreemptionCosts:
        return NO_COSTS


def make_stub_engine(**settings: Any) -> tuple[LLMEngine, StubWorker]:
    config = EngineConfig(model_path=Path("/nowhere"), **{"max_model_len": 1 << 16, **settings})
    worker = StubWorker(config.block_size)
    return LLMEngine(config, MODEL, worker), worker
