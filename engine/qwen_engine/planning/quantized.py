"""Quantised weights: what `quantization_config` says, and the bytes a matrix takes under it.

Owns the formats people publish: FP8 (block, channel, tensor), AWQ, GPTQ, compressed-tensors,
bitsandbytes, ModelOpt (FP8, NVFP4), MXFP4, GGUF. Embeddings, head, norms, routers and the vision
tower stay in 16 bits in all of them but GGUF. Called by `shape` and `weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qwen_engine.planning.errors import InvalidConfigError, UnsupportedModelError
from qwen_engine.planning.quantities import ceil_div

# Bits per weight of llama.cpp's formats, scales included (ggml-org/llama.cpp, ggml-quants.h: the
# size of a block over its weights; the _K_M mixtures as printed by its quantize tool for 7B).
_GGUF_BITS = {
    "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K_M": 5.68, "Q5_0": 5.5,
    "Q4_K_M": 4.85, "Q4_K_S": 4.58, "Q4_0": 4.5, "IQ4_XS": 4.25, "Q3_K_M": 3.91, "Q2_K": 3.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the decoder's matrices are packed.

    Attributes:
        bits: of one weight.
        scale_bytes: of one scale.
        block: (rows, columns) that share a scale; 0 means all of them.
        zero_bits: of one zero point, which comes with each scale; 0 if symmetric.
        expert_index_bytes: per input column of an expert's matrix, the order of its groups.
        whole_model: embeddings and head are packed too (GGUF).
        kept: names of modules left in 16 bits beyond the usual.
    """

    method: str
    bits: float
    scale_bytes: float = 0.0
    block: tuple[int, int] = (0, 0)
    zero_bits: float = 0.0
    expert_index_bytes: int = 0
    whole_model: bool = False
    kept: tuple[str, ...] = ()

    @property
    def is_fp8(self) -> bool:
        return self.bits == 8 and self.method in ("fp8", "compressed-tensors", "modelopt")

    def packed_bytes(self, rows: int, cols: int) -> int:
        """Return the bytes of a matrix's weights without scales."""
        return int(rows * cols * self.bits) // 8

    def scale_total(self, rows: int, cols: int) -> int:
        """Return the bytes of its scales and zero points."""
        if not self.scale_bytes:
            return 0
        down = ceil_div(rows, self.block[0]) if self.block[0] else 1
        across = ceil_div(cols, self.block[1]) if self.block[1] else 1
        return int(down * across * (self.scale_bytes + self.zero_bits / 8))

    def index_total(self, cols: int) -> int:
        """Return the bytes of the group order of one expert's matrix."""
        return self.expert_index_bytes * cols

    def keeps(self, module: str) -> bool:
        """Say whether a module such as `self_attn.q_proj` is left in 16 bits in every layer."""
        return any(name.removeprefix("re:").strip(".*$").endswith(module) for name in self.kept)


def parse_quantization(found: object) -> Quantization | None:
    """Read `quantization_config`; None where the checkpoint is not quantised.

    Raises:
        UnsupportedModelError: a method without known sizes.
        InvalidConfigError: no object, or a field that cannot be.
    """
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise InvalidConfigError("quantization_config", found, "must be an object")
    method = str(found.get("quant_method", "")).lower()
    readers = {
        "fp8": _fp8,
        "awq": _grouped,
        "gptq": _grouped,
        "compressed-tensors": _compressed,
        "bitsandbytes": _bitsandbytes,
        "modelopt": _modelopt,
        "mxfp4": lambda _: Quantization("mxfp4", 4, 1, (1, 32)),
        "gguf": _gguf,
    }
    if method not in readers:
        raise UnsupportedModelError(
            f"quant_method={found.get('quant_method')!r} is unknown to the planner, which knows "
            f"{', '.join(readers)}"
        )
    return readers[method](found)


def _fp8(found: Mapping[str, Any]) -> Quantization:
    block = found.get("weight_block_size")
    if block is None:
        return Quantization("fp8", 8, 4, (0, 0), kept=_kept(found))
    if not (isinstance(block, list) and len(block) == 2 and all(_is_size(b) for b in block)):
        raise InvalidConfigError("weight_block_size", block, "must be two positive integers")
    return Quantization("fp8", 8, 4, (block[0], block[1]), kept=_kept(found))


def _grouped(found: Mapping[str, Any]) -> Quantization:
    """AWQ has zero points; symmetric GPTQ's are dropped once loaded (vLLM, gptq_marlin.py)."""
    method, bits = str(found["quant_method"]).lower(), _bits(found, "bits", 4)
    group = found.get("group_size", 128)
    has_zeros = bool(found.get("zero_point", True)) if method == "awq" else (
        not found.get("sym", True)
    )  # fmt: skip
    return Quantization(
        method, bits, 2, (1, max(0, int(group))), bits if has_zeros else 0, kept=_kept(found)
    )


def _compressed(found: Mapping[str, Any]) -> Quantization:
    groups = found.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = {**found, **(first.get("weights") or {})} if isinstance(first, Mapping) else found
    bits = _bits(weights, "num_bits", _bits(weights, "bits", 8))
    group = weights.get("group_size") or 0
    strategy = weights.get("strategy") or ("group" if group else "channel")
    block = {"channel": (1, 0), "tensor": (0, 0), "block": (128, 128)}.get(
        str(strategy), (1, int(group))
    )
    scale = 1 if "nvfp4" in str(found.get("format", "")) else 4 if bits == 8 else 2
    zeros = 0 if weights.get("symmetric", True) else bits
    # vLLM keeps g_idx and its sort order, int32 each, for packed integer experts
    # (compressed_tensors_moe, WNA16).
    index = 8 if block[0] == 1 and block[1] else 0
    return Quantization("compressed-tensors", bits, scale, block, zeros, index, kept=_kept(found))


def _bitsandbytes(found: Mapping[str, Any]) -> Quantization:
    if found.get("load_in_8bit"):
        return Quantization("bitsandbytes", 8, 4, (1, 0), kept=_kept(found))
    double = bool(found.get("bnb_4bit_use_double_quant", False))
    # One scale of 64 weights: float32, or 8 bits and a float32 for 256 of them (QLoRA, section 3).
    return Quantization("bitsandbytes", 4, 1 + 4 / 256 if double else 4, (1, 64), kept=_kept(found))


def _modelopt(found: Mapping[str, Any]) -> Quantization:
    inner = found.get("quantization")
    algorithm = str((inner if isinstance(inner, Mapping) else found).get("quant_algo", "FP8"))
    if "FP4" in algorithm.upper():
        return Quantization("modelopt", 4, 1, (1, 16), kept=_kept(found))
    return Quantization("modelopt", 8, 4, (0, 0), kept=_kept(found))


def _gguf(found: Mapping[str, Any]) -> Quantization:
    name = str(found.get("type", "")).upper()
    if name not in _GGUF_BITS:
        raise InvalidConfigError("type", found.get("type"), f"must be one of {list(_GGUF_BITS)}")
    return Quantization("gguf", _GGUF_BITS[name], whole_model=True)


def _kept(found: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for field in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        value = found.get(field)
        names += [name for name in value or [] if isinstance(name, str)]
    return tuple(name for name in names if not any(part.isdigit() for part in name.split(".")))


def _bits(found: Mapping[str, Any], field: str, default: float) -> float:
    value = found.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 16:
        raise InvalidConfigError(field, value, "must be a number of bits from 1 to 16")
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
