"""What a user may demand of a plan; everything left at None is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from qwen_engine.planning.errors import InvalidDemandError
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, KVCacheDType, ModelShape, QuantizationName

BLOCK_SIZES = (16, 32, 64, 128)  # tokens per block that the attention backends run

ENGINES = ("qwen", "vllm")


@dataclass(frozen=True, slots=True)
class Demands:
    """Settings given by the user. Raises InvalidDemandError where one is out of its range."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    dtype: str = "auto"
    quantization: str = "none"  # of the weights, at load
    kv_cache_dtype: str = "auto"  # the model's own, or 8 bits
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None
    swap_space: float | None = None  # GiB
    mean_request_tokens: int = 128  # expected length of prompt + answer
    longest_context: bool = False  # as long a context as fits, up to the model's own
    engine: str = "qwen"  # or "vllm"
    engine_version: str | None = None  # of vLLM; None is the newest known
    tensor_parallel_size: int | None = None
    enforce_eager: bool = False
    limit_mm_per_prompt: Mapping[str, int] | None = None  # of pictures and videos
    mm_processor_kwargs: Mapping[str, Any] | None = None  # bounds of their sizes
    encoder_cache_tokens: int | None = None  # of our own engine

    def __post_init__(self) -> None:
        for field in (
            "max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override",
            "mean_request_tokens", "tensor_parallel_size", "encoder_cache_tokens",
        ):  # fmt: skip
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InvalidDemandError(field, value, "must be at least 1")
        if self.block_size is not None and self.block_size not in BLOCK_SIZES:
            raise InvalidDemandError("block_size", self.block_size, f"must be one of {BLOCK_SIZES}")
        if self.swap_space is not None and not 0 <= self.swap_space < 2**20:
            raise InvalidDemandError("swap_space", self.swap_space, "must be 0 or more, in GiB")
        utilization = self.gpu_memory_utilization
        if utilization is not None and not 0.05 <= utilization <= 1:
            raise InvalidDemandError(
                "gpu_memory_utilization", utilization, "must be a fraction from 0.05 to 1"
            )
        self._check_names()
        if self.engine == "qwen" and self.tensor_parallel_size not in (None, 1):
            raise InvalidDemandError(
                "tensor_parallel_size",
                self.tensor_parallel_size,
                "this version's own engine runs on one GPU; vLLM runs on several "
                "(--engine vllm, spec.engine.runtime: VLLM)",
            )

    def _check_names(self) -> None:
        listed = "must be one of {}"
        packed = "must be none or int8, which is made of any checkpoint; FP8 ones need no flag"
        for field, known, problem in (
            ("engine", ENGINES, listed),
            ("dtype", ("auto", *BYTES_PER_ELEMENT), listed),
            ("quantization", get_args(QuantizationName), packed),
            ("kv_cache_dtype", get_args(KVCacheDType), listed),
        ):
            value = getattr(self, field)
            if value not in known:
                raise InvalidDemandError(field, value, problem.format(", ".join(known)))

    def serve(self, model: ModelShape) -> ModelShape:
        """Return the model as it is to be kept in memory."""
        if self.engine != "qwen":
            return model
        return replace(
            model,
            int8_weights=self.quantization == "int8",
            kv_cache_dtype=cast(KVCacheDType, self.kv_cache_dtype),
            quantization=None,  # FP8 matrices are widened while they are read
        )
