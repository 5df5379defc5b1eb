"""How products with int8 weights are computed on a CPU, chosen by measurement like `gemm`'s.

Built by `worker` when the weights are in place; bfloat16 in and out. A step of few rows is bound
by memory: there int8 takes half of bfloat16's time. With many rows the weights are widened first,
a panel at a time or whole, and cost what bfloat16's cost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import INT8_WAYS, Int8Way, can_pack, scratch_values
from qwen_engine.layers import int8
from qwen_engine.layers.gemm import PROBE_ROWS, GemmChoice, MeasuredGemm, Way, measure_ways

log = logging.getLogger(__name__)


class Int8Gemm(MeasuredGemm):
    """int8 weights on a CPU, each number of rows the way that was measured fastest."""

    def __init__(self, choice: GemmChoice, library: NativeLibrary) -> None:
        super().__init__(choice, library)
        self._native = library

    def compute(
        self, way: Way, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute one way; the weight must be packed."""
        if way == "unpack":
            out, size = weight.shape[0], x.shape[1]
            plain = self._take(out * size).view(torch.bfloat16)[: out * size].view(out, size)
            self._native.int8_unpack(weight, out=plain)
            return functional.linear(x, plain, bias)
        return self._native.int8_linear(
            x, weight, bias, way=cast(Int8Way, way), scratch=self._take(scratch_values(x))
        )

    def adopt(self, weight: torch.Tensor) -> None:
        """Bring a plain weight that can be packed into the kernels' layout, in place."""
        self._native.int8_pack(weight)

    def lookup(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return these rows of a packed weight in float32."""
        size = weight.shape[1] - int8.SCALE_BYTES
        panels = weight.view(-1, 32 * weight.shape[1])
        pairs = panels[:, : 32 * size].view(torch.int16).view(-1, size // 2, 32)
        scales = panels[:, 32 * size :].view(torch.float32)
        values = pairs[rows // 32, :, rows % 32].view(torch.int8)
        return values * scales[rows // 32, rows % 32].unsqueeze(1)


def choose_int8_gemm(weights: Sequence[torch.Tensor], library: NativeLibrary) -> Int8Gemm | None:
    """Measure all ways on some of the model's own int8 weights, left as they are.

    None: they cannot be packed.
    """
    probes = [weight[:PROBE_ROWS] for weight in weights if can_pack(weight[:PROBE_ROWS])]
    if not probes:
        return None
    gemm = Int8Gemm(GemmChoice({}, is_packed=True), library)
    ways: tuple[Way, ...] = (*(way for way in INT8_WAYS if way.endswith(library.kernels)), "unpack")
    for probe in probes:
        library.int8_pack(probe)
    times = measure_ways(gemm, ways, probes, in_size=probes[0].shape[1] - int8.SCALE_BYTES)
    for probe in probes:
        library.int8_pack(probe, back=True)
    choice = GemmChoice(times, is_packed=True)
    log.info("Matrix products with int8 weights: %s", choice.describe())
    return Int8Gemm(choice, library)
