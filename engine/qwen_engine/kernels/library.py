"""Finds the C++ library and calls it with torch's tensors.

Used by the layers. Owns the pointers and the checks that they are what C++ takes them for;
ctypes lets go of the interpreter lock during a call. Decides nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

import torch

from qwen_engine.kernels.ways import WAYS, Int8Way, Kernel, can_pack, scratch_values

log = logging.getLogger(__name__)

_LANES = ("avx512", "avx2")  # the libraries, widest first


class NativeLibrary:
    """The library's functions.

    Attributes:
        kernels: those that this processor runs, and that are worth it.
        multiplies_pairs: whether it runs products of pairs of bfloat16, by `dot`'s instruction or
            by several others.
        attention: which kernel's products attention of prompts is made of.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        found = self._library.qwen_kernels()
        self.kernels: tuple[Kernel, ...] = tuple(_KERNELS[bit] for bit in _KERNELS if found & bit)
        self.multiplies_pairs = bool(found & 4)
        if self.kernels:
            self.attention = self.kernels[-1]
            for name, kinds in _SIGNATURES.items():
                self.function(name, kinds)
            self._library.qwen_room.argtypes = [ctypes.c_void_p]
            self._library.qwen_room.restype = ctypes.c_long
            self._library.qwen_team_seconds.argtypes = [ctypes.c_int]
            self._library.qwen_team_seconds.restype = ctypes.c_double

    def function(self, name: str, kinds: str) -> Callable[..., None]:
        """Return one of the library's functions; `kinds` are its arguments', as in `_C_TYPES`."""
        found = getattr(self._library, name)
        found.argtypes = [_C_TYPES[kind] for kind in kinds]
        found.restype = None
        return cast("Callable[..., None]", found)

    @classmethod
    def find(cls) -> Self | None:
        """Return the library with the widest lanes that was built and that this processor runs.

        QWEN_KERNELS: only this one, `avx512` or `avx2`; another word leaves all to torch.
        """
        wanted = os.environ.get("QWEN_KERNELS") or None
        for kind in (kind for kind in _LANES if wanted in (kind, None)):
            for path in Path(__file__).parent.glob(f"_native_{kind}.*.so"):
                try:
                    library = cls(path)
                except OSError as error:  # built for another system
                    log.warning("%s cannot be loaded: %s", path.name, error)
                    continue
                if library.kernels:
                    return library
        return None

    def processor_seconds(self) -> float:
        """Return what all threads that work for this one, and torch's, have had so far."""
        return float(self._library.qwen_team_seconds(torch.get_num_threads()))

    def pack(self, weight: torch.Tensor) -> None:
        """Bring bfloat16 [out, in] into the kernels' layout, in place."""
        _check(weight)
        self._library.qwen_pack(*_sized(weight), 0, weight.data_ptr(), torch.get_num_threads())

    def unpack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Write the plain form of a packed weight to `out`, which may be the weight itself."""
        _check(weight)
        _check(out)
        self._library.qwen_pack(*_sized(weight), 1, out.data_ptr(), torch.get_num_threads())

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        kernel: Kernel,
        scratch: torch.Tensor,
    ) -> torch.Tensor:
        """Return x·Wᵀ + b: bfloat16 [rows, in] and a packed weight → [rows, out].

        scratch: float32, at least scratch_values(x).
        """
        rows, size = x.shape
        out = weight.shape[0]
        assert x.dtype == weight.dtype == torch.bfloat16
        assert weight.shape[1] == size
        assert len(scratch) >= scratch_values(x)
        if x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty(rows, out, dtype=torch.bfloat16)
        self._library.qwen_linear(
            x.data_ptr(), x.stride(0), weight.data_ptr(), _pointer(bias),
            y.data_ptr(), rows, out, size, WAYS.index(kernel), scratch.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return y

    def int8_pack(self, weight: torch.Tensor, *, back: bool = False) -> None:
        """Bring int8 [out, in + 4], values and scale, into the kernels' layout, or back."""
        _check_int8(weight)
        self._library.qwen_int8_pack(
            weight.data_ptr(), len(weight), weight.shape[1] - 4, int(back), torch.get_num_threads()
        )

    def int8_unpack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Write a packed int8 weight to `out`, bfloat16 [out, in]."""
        _check_int8(weight)
        _check(out)
        self._library.qwen_int8_unpack(
            weight.data_ptr(), *out.shape, out.data_ptr(), torch.get_num_threads()
        )

    def int8_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        way: Int8Way,
        scratch: torch.Tensor,
    ) -> torch.Tensor:
        """Return x·Wᵀ + b as `linear` does, with a packed int8 weight."""
        rows, (out, stored) = len(x), weight.shape
        size = stored - 4
        _check_int8(weight)
        assert x.dtype == torch.bfloat16
        assert x.shape[1] == size
        assert len(scratch) >= scratch_values(x)
        if x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty(rows, out, dtype=torch.bfloat16)
        self._library.qwen_linear(
            x.data_ptr(), x.stride(0), weight.data_ptr(), _pointer(bias), y.data_ptr(), rows, out,
            size, WAYS.index(way), scratch.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return y

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return x / rms(x) · weight over the last dimension, a multiple of 16.

        delta: contiguous, as x; added to x first, in place.
        """
        if delta is None:
            x = x.contiguous()
        else:
            assert delta.shape == x.shape
            assert x.is_contiguous()
            assert delta.is_contiguous()
        out = torch.empty_like(x)
        size = x.shape[-1]
        self._library.qwen_norm(
            x.data_ptr(), _pointer(delta), weight.data_ptr(), out.data_ptr(), x.numel() // size,
            size, eps, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) · up of [rows, 2 × size], gate first; size is a multiple of 16."""
        rows, size = x.shape[0], x.shape[1] // 2
        out = torch.empty(rows, size, dtype=x.dtype)
        self._library.qwen_gate(x.data_ptr(), out.data_ptr(), rows, size, torch.get_num_threads())
        return out

    def heads(
        self,
        qkv: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        *,
        kv_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Normalise and rotate queries and keys; keys and values go to their slots.

        qkv: [rows, heads + 2 × kv heads, head_dim], head_dim a multiple of 32; norms: the weights
        for queries and keys, and eps; rotary: cos and sin [rows, 1, head_dim]. Returns the
        queries [rows, heads, head_dim].
        """
        rows, all_heads, size = qkv.shape
        block_size = _rows_per_block(cache[0], size) // kv_heads
        query = torch.empty(rows, all_heads - 2 * kv_heads, size, dtype=qkv.dtype)
        q_norm, k_norm, eps = norms or (None, None, 0.0)
        self._library.qwen_heads(
            qkv.data_ptr(), _pointer(q_norm), _pointer(k_norm), rotary[0].data_ptr(),
            rotary[1].data_ptr(), slots.data_ptr(), query.data_ptr(), cache[0].data_ptr(),
            cache[1].data_ptr(), rows, query.shape[1], kv_heads, size, block_size,
            FORMATS[cache[0].dtype], eps, torch.get_num_threads(),
        )  # fmt: skip
        return query

    def attend(
        self,
        query: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        *,
        block_size: int,
        tables: torch.Tensor,
        starts: torch.Tensor,
        contexts: torch.Tensor,
    ) -> torch.Tensor:
        """Attend as `AttentionStep.attend` says; head_dim is one of ATTENTION_SIZES.

        tables: [num_seqs, most blocks]; starts: [num_seqs + 1]; contexts: [num_seqs]; int64.
        """
        query = query.contiguous()
        output = torch.empty_like(query)
        kv_heads = _rows_per_block(cache[0], query.shape[2]) // block_size
        self._library.qwen_attend(
            query.data_ptr(), cache[0].data_ptr(), cache[1].data_ptr(), output.data_ptr(),
            tables.data_ptr(), tables.shape[1], starts.data_ptr(), contexts.data_ptr(),
            contexts.shape[0], query.shape[1], kv_heads, query.shape[2], block_size,
            FORMATS[cache[0].dtype], WAYS.index(self.attention), torch.get_num_threads(),
        )  # fmt: skip
        return output

    def stack_room(self, shape: ctypes.Structure) -> int:
        """Return the bfloat16 values that a row needs as `run_stack` works on it."""
        return int(self._library.qwen_room(ctypes.byref(shape)))

    def run_stack(
        self,
        shape: ctypes.Structure,
        parts: ctypes.Array[ctypes.c_int64],
        step: ctypes.Structure,
        count: int,
    ) -> None:
        """Run `count` layers; `layers.stack` says what the structs are."""
        self._library.qwen_layers(
            ctypes.byref(shape), parts, ctypes.byref(step), count, torch.get_num_threads()
        )


ATTENTION_SIZES = (64, 128)  # of a head: the instances in attention.cpp

# p: pointer, n: number, i: int, f: float; as the functions of the .cpp files have them
_C_TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_long, "i": ctypes.c_int, "f": ctypes.c_float}
_SIGNATURES = {
    "qwen_pack": "pnnipi",
    "qwen_linear": "pnpppnnnipi",
    "qwen_int8_pack": "pnnii",
    "qwen_int8_unpack": "pnnpi",
    "qwen_norm": "ppppnnfi",
    "qwen_gate": "ppnni",
    "qwen_heads": "pppppppppnnnnnifi",
    "qwen_attend": "pppppnppnnnnniii",
    "qwen_layers": "pppni",
}
FORMATS = {torch.bfloat16: 0, torch.int8: 1, torch.float8_e4m3fn: 2}  # of the cache: cache.h
_SCALE_BYTES = 2  # beside a head in 8 bits
_KERNELS: dict[int, Kernel] = {1: "fma", 2: "dot", 8: "tile"}  # bits of qwen_kernels()


def _rows_per_block(part: torch.Tensor, head_dim: int) -> int:
    """Return a block's size × its heads, of keys or values in any format."""
    row = head_dim * part.itemsize + (_SCALE_BYTES if part.itemsize == 1 else 0)
    return part.nbytes // part.shape[0] // row


def _check(weight: torch.Tensor) -> None:
    assert weight.dtype == torch.bfloat16
    assert weight.is_contiguous()
    assert can_pack(weight)


def _check_int8(weight: torch.Tensor) -> None:
    assert weight.dtype == torch.int8
    assert weight.is_contiguous()
    assert can_pack(weight)


def _sized(weight: torch.Tensor) -> tuple[int, int, int]:
    return weight.data_ptr(), weight.shape[0], weight.shape[1]


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
