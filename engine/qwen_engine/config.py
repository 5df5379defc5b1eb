"""The engine's own settings.

Owns `EngineConfig`, where every setting is resolved: nothing in it is "planned" any more. Built
by the command line, read everywhere below. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from qwen_engine.errors import ConfigError
from qwen_engine.planning.shape import BYTES_PER_ELEMENT, DTypeName, KVCacheDType, QuantizationName

DeviceName = Literal["cpu", "cuda"]
BackendName = Literal["sdpa", "reference"]
PreemptionMode = Literal["auto", "swap", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every engine setting, resolved.

    Raises:
        ConfigError: a value that cannot be.
    """

    model_path: Path  # a folder with config.json and *.safetensors
    max_model_len: int  # tokens, prompt and output together
    num_gpu_blocks: int  # KV blocks in the pool, whatever the device
    served_model_names: tuple[str, ...] = ()
    dtype: DTypeName = "bfloat16"
    quantization: QuantizationName = "none"  # of the weights, while they are loaded
    kv_cache_dtype: KVCacheDType = "auto"  # the model's
    device: DeviceName = "cpu"
    block_size: int = 16  # tokens
    max_num_batched_tokens: int = 2048  # of one step
    max_num_seqs: int = 128  # running at once
    enable_prefix_caching: bool = True
    seed: int = 0  # of requests that bring none
    attention_backend: BackendName = "sdpa"
    num_cpu_blocks: int = 0  # swap space, in blocks of the same geometry in host memory
    preemption_mode: PreemptionMode = "auto"  # where there is swap space; else recompute
    # Of pictures, kept on the device; 0: text only, and the vision tower is not loaded.
    encoder_cache_tokens: int = 0
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)  # image, video; else any
    # Over the checkpoint's own settings: the largest picture and video that memory is planned for.
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    allowed_media_domains: tuple[str, ...] = ()  # of URLs in requests; empty: all public ones
    num_threads: int = 0  # of torch on CPU; 0 leaves its own choice (OMP_NUM_THREADS, affinity)

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "num_gpu_blocks",
            "block_size",
            "max_num_batched_tokens",
            "max_num_seqs",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must be at least 1")
        for name in ("num_threads", "num_cpu_blocks", "encoder_cache_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "must be 0 or more")
        if self.dtype not in BYTES_PER_ELEMENT:
            raise ConfigError("dtype", self.dtype, f"must be one of {', '.join(BYTES_PER_ELEMENT)}")
        if self.quantization not in get_args(QuantizationName):
            known = ", ".join(get_args(QuantizationName))
            raise ConfigError("quantization", self.quantization, f"must be one of {known}")
        if self.kv_cache_dtype not in get_args(KVCacheDType):
            known = ", ".join(get_args(KVCacheDType))
            raise ConfigError("kv_cache_dtype", self.kv_cache_dtype, f"must be one of {known}")
