"""Finds native.cpp's library and calls it with torch's tensors.

Used by `layers.gemm`. Owns the pointers and the checks that they are what C++ takes them for;
ctypes lets go of the interpreter lock during a call. Decides nothing.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Literal, Self

import torch

log = logging.getLogger(__name__)

PANEL_ROWS = 32  # output rows packed side by side: kPanel in native.cpp

Kernel = Literal["fma", "dot"]


class NativeLibrary:
    """The library's functions; `kernels` are those that this processor runs."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        pointer, number, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._library.qwen_pack.argtypes = [pointer, number, number, flag, pointer, flag]
        self._library.qwen_pack.restype = None
        self.kernels: tuple[Kernel, ...] = _KERNELS[self._library.qwen_kernels()]
        if self.kernels:
            self._library.qwen_linear.argtypes = [
                pointer, number, pointer, pointer, pointer, number, number, number, flag,
                pointer, flag,
            ]  # fmt: skip
            self._library.qwen_linear.restype = None

    @classmethod
    def find(cls) -> Self | None:
        """Return the library if it was built and this processor can use it."""
        for path in Path(__file__).parent.glob("_native*.so"):
            try:
                library = cls(path)
            except OSError as error:  # built for another system
                log.warning("%s cannot be loaded: %s", path.name, error)
                continue
            return library if library.kernels else None
        return None

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

        scratch: float32, at least rows × in.
        """
        rows, (out, size) = len(x), weight.shape
        assert x.dtype == weight.dtype == torch.bfloat16
        assert x.shape[1] == size
        assert len(scratch) >= rows * size
        if x.stride(1) != 1:
            x = x.contiguous()
        y = torch.empty(rows, out, dtype=torch.bfloat16)
        self._library.qwen_linear(
            x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr(),
            y.data_ptr(), rows, out, size, int(kernel == "dot"), scratch.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return y


_KERNELS: dict[int, tuple[Kernel, ...]] = {0: (), 1: ("fma",), 3: ("fma", "dot")}


def can_pack(weight: torch.Tensor) -> bool:
    """Say whether a weight [out, in] falls into whole panels of pairs."""
    out, size = weight.shape
    return out % PANEL_ROWS == 0 and size % 2 == 0


def _check(weight: torch.Tensor) -> None:
    assert weight.dtype == torch.bfloat16
    assert weight.is_contiguous()
    assert can_pack(weight)


def _sized(weight: torch.Tensor) -> tuple[int, int, int]:
    return weight.data_ptr(), weight.shape[0], weight.shape[1]
