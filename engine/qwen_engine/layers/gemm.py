"""How matrix products with the model's weights are computed on a CPU, chosen by measurement.

Owns the ways there are, the choice among them for each number of rows, and the layout of the
weights that goes with it. Built once by `worker`, when the weights are in place; used by
`linear` and by the decoder's head. Knows no model.

No rule by processor name would hold: for 16 rows an Intel Sapphire Rapids takes 3.2 ms with
oneDNN's packed bfloat16 and 2.1 ms widening to float32 in registers, and an AMD EPYC with
full-rate AVX512-BF16 has it the other way round.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, cast

import torch
from torch.nn import functional

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import Int8Way, Kernel, can_pack, scratch_values
from qwen_engine.layers import int8
from qwen_engine.stopwatch import time_in_turns

log = logging.getLogger(__name__)

# torch: as it comes; float32: the weight widened for torch; fma, dot, tile: gemm.cpp's kernels;
# unpack: the packed weight made plain for torch.
Way = Literal["torch", "float32", "unpack"] | Kernel | Int8Way
NUM_WAYS = 6
_PLAIN_WAYS: tuple[Way, ...] = ("torch", "float32")
_COPYING_WAYS: tuple[Way, ...] = ("float32", "unpack")

# Measured at these numbers of rows; others take the nearest one's way.
ROW_COUNTS = (1, 4, 16, 64, 256)
PROBE_ROWS = 2048  # of a weight's: some ms at 256 rows of x
SECONDS_TO_MEASURE = 0.15
_HOPELESS = 4  # times the best way so far: warm or not, it will not win

# Ways that copy a weight first are not for larger ones: a head of 151,936 × 1,024 would need
# 0.6 GB of scratch.
MAX_COPIED_VALUES = 2**25


class Gemm(Protocol):
    """Products with weights that all have one layout."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Map [rows, in] by a weight [out, in] to [rows, out]."""
        ...

    def lookup(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return these rows of the weight, in plain order; int8 ones in float32."""
        ...


class TorchGemm:
    """Plain weights, float or int8, and torch's own choice: right for every dtype and device."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if weight.dtype == torch.int8:
            return int8.linear(x, weight, bias)
        return functional.linear(x, weight, bias)

    def lookup(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.dtype == torch.int8:
            return int8.lookup(rows, weight)
        return functional.embedding(rows, weight)


@dataclass(frozen=True, slots=True)
class GemmChoice:
    """What was measured, and what follows of it."""

    microseconds: Mapping[Way, Mapping[int, int]]  # by way and number of rows
    is_packed: bool

    @property
    def ways(self) -> tuple[Way, ...]:
        """Those that the layout allows."""
        tried = self.microseconds
        return tuple(way for way in tried if (way not in _PLAIN_WAYS) == self.is_packed)

    def way(self, num_rows: int, *, may_copy: bool = True) -> Way:
        """Return the way that was fastest at the measured number of rows nearest by ratio."""
        borders = [math.sqrt(a * b) for a, b in itertools.pairwise(ROW_COUNTS)]
        nearest = ROW_COUNTS[bisect.bisect(borders, num_rows)]
        ways = [way for way in self.ways if may_copy or way not in _COPYING_WAYS]
        return min(ways, key=lambda way: self.microseconds[way][nearest])

    def report(self) -> dict[str, dict[str, str | int]]:
        """Return by number of rows the way taken, and the microseconds of each that was tried."""
        return {
            str(count): {
                "way": self.way(count),
                **{way: us[count] for way, us in self.microseconds.items()},
            }
            for count in ROW_COUNTS
        }

    def describe(self) -> str:
        """Say it in a line: `1 rows: fma (torch 180, float32 412, fma 170 µs); 4 rows: …`."""
        parts = []
        for count in ROW_COUNTS:
            tried = ", ".join(f"{way} {us[count]}" for way, us in self.microseconds.items())
            parts.append(f"{count} rows: {self.way(count)} ({tried} µs)")
        return "; ".join(parts)


class MeasuredGemm:
    """bfloat16 weights on a CPU, each number of rows the way that was measured fastest."""

    def __init__(self, choice: GemmChoice, library: NativeLibrary | None) -> None:
        self.choice = choice
        self._library = library
        self._ways: dict[tuple[int, bool], Way] = {}  # found before
        self._scratch = torch.empty(0)

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        key = x.shape[0], weight.numel() <= MAX_COPIED_VALUES
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self.choice.way(key[0], may_copy=key[1])
        return self.compute(way, x, weight, bias)

    @property
    def processor_seconds(self) -> Callable[[], float] | None:
        """What tells the processor time of the threads that compute, if anything does."""
        return None if self._library is None else self._library.processor_seconds

    def native_way(self, num_rows: int) -> Kernel | Int8Way | None:
        """Return the way for this many rows if it is one of the C++ kernels'."""
        way = self.choice.way(num_rows, may_copy=True)
        return None if way in _PLAIN_WAYS or way in _COPYING_WAYS else cast(Kernel | Int8Way, way)

    def compute(
        self, way: Way, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute one way; the weight must have the layout that it takes."""
        if way == "torch":
            return functional.linear(x, weight, bias)
        if way == "float32":
            wide = self._take(weight.numel())[: weight.numel()].view(weight.shape).copy_(weight)
            wide_bias = None if bias is None else bias.float()
            return functional.linear(x.float(), wide, wide_bias).to(x.dtype)
        assert self._library is not None
        if way == "unpack":
            plain = self._take(weight.numel()).view(torch.bfloat16)[: weight.numel()]
            plain = plain.view(weight.shape)
            self._library.unpack(weight, out=plain)
            return functional.linear(x, plain, bias)
        scratch = self._take(scratch_values(x))
        kernel = cast(Kernel, way)
        return self._library.linear(x, weight, bias, kernel=kernel, scratch=scratch)

    def adopt(self, weight: torch.Tensor) -> None:
        """Bring a plain weight that can be packed into the chosen layout, in place."""
        if self.choice.is_packed:
            assert self._library is not None
            self._library.pack(weight)

    def lookup(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not self.choice.is_packed:
            return functional.embedding(rows, weight)
        size = weight.shape[1]
        pairs = weight.view(torch.int32).view(-1, size // 2, 32)  # [panels, pairs, rows of one]
        return pairs[rows // 32, :, rows % 32].view(weight.dtype)

    def _take(self, num_values: int) -> torch.Tensor:
        """Return memory for that many values, or more, that every product reuses.

        Fresh pages would cost more than they hold.
        """
        if self._scratch.shape[0] < num_values:
            self._scratch = torch.empty(num_values)
        return self._scratch


def choose_gemm(
    weights: Sequence[torch.Tensor], library: NativeLibrary | None
) -> MeasuredGemm | None:
    """Measure all ways on some of the model's own weights, left as they are; None: none to choose.

    Different weights take turns, as in a step, so that they come from memory and not from a
    cache. Takes about SECONDS_TO_MEASURE.
    """
    probes = [weight[:PROBE_ROWS] for weight in weights if can_pack(weight[:PROBE_ROWS])]
    if not probes or probes[0].dtype != torch.bfloat16:
        return None
    gemm = MeasuredGemm(GemmChoice({}, is_packed=False), library)
    size = probes[0].shape[1]
    times = measure_ways(gemm, _PLAIN_WAYS, probes, in_size=size)
    if library is not None:
        for probe in probes:
            library.pack(probe)
        times |= measure_ways(gemm, (*library.kernels, "unpack"), probes, in_size=size)
        for probe in probes:
            library.unpack(probe, out=probe)
    choice = _choose(times)
    log.info("Matrix products: %s", choice.describe())
    return MeasuredGemm(choice, library)


Times = dict[Way, dict[int, int]]  # microseconds


def measure_ways(
    gemm: MeasuredGemm, ways: Sequence[Way], probes: Sequence[torch.Tensor], *, in_size: int
) -> Times:
    """Return the best time of each way and number of rows [rows, in_size], all threads busy.

    All take the next weight each time, so that none finds in a cache what another has read.
    """
    seconds = SECONDS_TO_MEASURE * len(ways) / (NUM_WAYS * len(ROW_COUNTS))
    times: Times = {way: {} for way in ways}
    weights = itertools.cycle(probes)
    for count in ROW_COUNTS:
        x = torch.randn(count, in_size).to(torch.bfloat16)
        works = {way: partial(_multiply_next, gemm, way, x, weights) for way in ways}
        found = time_in_turns(
            works,
            seconds,
            num_threads=torch.get_num_threads(),
            processor_seconds=gemm.processor_seconds,
            hopeless=_HOPELESS,
        )
        for way, microseconds in found.items():
            times[way][count] = microseconds
    return times


def _multiply_next(
    gemm: MeasuredGemm, way: Way, x: torch.Tensor, weights: Iterator[torch.Tensor]
) -> None:
    gemm.compute(way, x, next(weights))


def _choose(times: Times) -> GemmChoice:
    """Take the layout that is faster over all numbers of rows."""
    plain, packed = GemmChoice(times, is_packed=False), GemmChoice(times, is_packed=True)
    return packed if packed.ways and _mean_log(packed) < _mean_log(plain) else plain


def _mean_log(choice: GemmChoice) -> float:
    best = (min(choice.microseconds[way][count] for way in choice.ways) for count in ROW_COUNTS)
    return math.fsum(map(math.log, best))
