"""A draft: every setting that bytes depend on, and what each of the two engines makes of it.

The one place that knows which engine is priced. Called by `fit`, `plan` and `refusal`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qwen_engine.planning.device import Device
from qwen_engine.planning.ledger import (
    LedgerLine,
    StepSize,
    activations_line,
    block_bytes,
    kv_line,
    runtime_line,
    weights_line,
)
from qwen_engine.planning.pictures import Pictures
from qwen_engine.planning.shape import DTypeName, ModelShape
from qwen_engine.planning.vision_memory import (
    encoder_cache_line,
    picture_bytes,
    pixels_bytes,
    tower_line,
    with_pictures,
)
from qwen_engine.planning.vllm import VllmPrice, price_vllm, token_bytes
from qwen_engine.planning.vllm_ledger import vllm_kv_line, vllm_lines
from qwen_engine.planning.vllm_step import NO_FLAGS, VllmFlags, VllmStart
from qwen_engine.planning.vllm_version import VllmVersion


@dataclass(frozen=True, slots=True)
class Draft:
    """All settings that bytes depend on.

    Attributes:
        vllm: the release that is to run the model; None for our own engine.
    """

    model: ModelShape
    device: Device
    dtype: DTypeName
    block_size: int
    utilization: float
    step: StepSize
    num_blocks_override: int | None = None
    swap_bytes: int = 0  # of the device's own memory: on a CPU
    vllm: VllmVersion | None = None
    vllm_flags: VllmFlags = NO_FLAGS
    pictures: Pictures | None = None  # of our own engine; None: text only

    def with_context(self, max_model_len: int) -> Draft:
        """Return the draft for another context length, in tokens."""
        return replace(self, step=replace(self.step, max_model_len=max_model_len))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on one GPU."""
        if self.vllm is None:
            return block_bytes(self.model, self.dtype, self.block_size)
        return int(token_bytes(self.model, self._flags()) * self.block_size)

    @property
    def budget_bytes(self) -> int:
        """What the engine may take of the device; vLLM's share is of what CUDA reports."""
        total = self.device.memory_bytes if self.vllm is None else self.device.visible_bytes
        return int(total * self.utilization)

    def fixed_lines(self) -> list[LedgerLine]:
        """Return everything but the KV cache and swap, line by line."""
        if self.vllm is not None:
            return vllm_lines(self._start(), self._price())
        runtime = runtime_line(self.device, self.model)
        weights = weights_line(self.model, self.dtype)
        activations = activations_line(self.model, self.dtype, self.step)
        if (vision := self.model.vision) is None or (pictures := self.pictures) is None:
            return [runtime, weights, activations]
        added = picture_bytes(
            vision, self.dtype, pictures,
            step_tokens=self.step.max_num_batched_tokens, text_bytes=activations.num_bytes,
        )  # fmt: skip
        if self.device.kind == "cpu":
            added += pixels_bytes(vision, self.encoder_cache_tokens)
        return [
            runtime,
            weights,
            tower_line(self.model, self.dtype),
            with_pictures(activations, added),
            encoder_cache_line(vision, self.dtype, self.encoder_cache_tokens),
        ]

    @property
    def encoder_cache_tokens(self) -> int:
        """Tokens of pictures that our own engine keeps."""
        pictures = self.pictures
        return pictures.kept_tokens(self.step.max_model_len) if pictures is not None else 0

    def kv_line(self, num_blocks: int) -> LedgerLine:
        """Return the line of the block pool."""
        if self.vllm is not None:
            return vllm_kv_line(self._start(), num_blocks)
        return kv_line(self.model, self.dtype, block_size=self.block_size, num_blocks=num_blocks)

    def fixed_bytes(self) -> int:
        """Return everything but the KV cache."""
        if self.vllm is not None:
            price = self._price()
            return price.budget_bytes - price.kv_bytes
        return sum(line.num_bytes for line in self.fixed_lines()) + self.swap_bytes

    def _flags(self) -> VllmFlags:
        return replace(
            self.vllm_flags,
            gpu_memory_utilization=self.utilization,
            max_model_len=self.step.max_model_len,
            max_num_seqs=self.step.max_num_seqs,
            max_num_batched_tokens=self.step.max_num_batched_tokens,
            block_size=self.block_size,
        )

    def _start(self) -> VllmStart:
        assert self.vllm is not None, "only a draft for vLLM has a start of vLLM"
        return VllmStart(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            flags=self._flags(),
            version=self.vllm,
        )

    def _price(self) -> VllmPrice:
        return price_vllm(self._start())
