"""Several layers of a decoder in one call of the C++ library.

Built by `models.native_layers`. Owns the structs of stack.cpp and the memory that a step hands on
between products; knows tensors and sizes, no model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import torch

from qwen_engine.kernels.library import FORMATS, NativeLibrary
from qwen_engine.kernels.ways import WAYS, Int8Way, Kernel, whole_tiles
from qwen_engine.layers import pages

Product = tuple[torch.Tensor, torch.Tensor | None]  # a packed weight and its bias


@dataclass(frozen=True, slots=True)
class StackShape:
    """What all layers have in common."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    eps: float
    head_eps: float


@dataclass(frozen=True, slots=True)
class StackLayer:
    """A layer's tensors; those of products are packed."""

    norms: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
    products: tuple[Product, Product, Product, Product]  # qkv, output, gate and up, down
    cache: tuple[torch.Tensor, torch.Tensor]

    def words(self) -> Iterator[int]:
        """Yield LayerParts of stack.cpp as numbers of 64 bits."""
        yield from map(_address, self.norms)
        for weight, bias in self.products:
            size = weight.shape[1] - (4 if weight.dtype == torch.int8 else 0)
            yield from (weight.data_ptr(), _address(bias), weight.shape[0], size)
        yield from map(_address, self.cache)


@dataclass(frozen=True, slots=True)
class StackStep:
    """What every layer of a step needs; [num_tokens] each, int64 where not said otherwise."""

    cos: torch.Tensor  # bfloat16 [num_tokens, 1, head_dim]
    sin: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor  # [num_seqs, most blocks]
    starts: torch.Tensor  # [num_seqs + 1]
    contexts: torch.Tensor  # [num_seqs]


@dataclass(frozen=True, slots=True)
class Taps:
    """What is added to what the first layers give, at some rows (DeepStack, arXiv 2406.04334)."""

    rows: torch.Tensor  # int64 [num_tapped]
    values: torch.Tensor  # bfloat16 [num_tapped, num_taps × hidden], a row's values side by side


Ways = tuple[Kernel | Int8Way, Kernel | Int8Way]  # for all rows, and for the wanted ones


class LayerStack:
    """The layers of one model, with their caches."""

    def __init__(
        self, library: NativeLibrary, shape: StackShape, layers: Sequence[StackLayer]
    ) -> None:
        self._library, self._layers = library, list(layers)  # the tensors must stay
        words = [word for layer in layers for word in layer.words()]
        self._parts = (ctypes.c_int64 * len(words))(*words)
        *sizes, eps, head_eps = astuple(shape)
        kind = FORMATS[layers[0].cache[0].dtype]
        self._shape = _Shape(*sizes, kind, WAYS.index(library.attention), eps, head_eps)
        self._values_per_row = library.stack_room(self._shape)
        self._room = torch.empty(0, dtype=torch.bfloat16)

    def __len__(self) -> int:
        return len(self._layers)

    def run(
        self,
        hidden: torch.Tensor,
        step: StackStep,
        *,
        ways: Ways,
        wanted: torch.Tensor | None = None,
        taps: Taps | None = None,
    ) -> torch.Tensor:
        """Put the rows [num_tokens, hidden] through all layers, in place.

        wanted: rows that the last of them must give, rising; None: all. Returns those.
        """
        assert hidden.is_contiguous()
        assert hidden.dtype == step.cos.dtype == step.sin.dtype == torch.bfloat16
        assert all(part.is_contiguous() for part in (step.cos, step.sin, step.tables, step.slots))
        rows = len(hidden)
        num_wanted = rows if wanted is None else len(wanted)
        count = whole_tiles(rows) * self._values_per_row
        if len(self._room) < count:
            self._room = pages.empty((count,), dtype=torch.bfloat16, device=hidden.device)
        packed = _Step(
            hidden.data_ptr(), step.cos.data_ptr(), step.sin.data_ptr(), step.slots.data_ptr(),
            step.tables.data_ptr(), step.starts.data_ptr(), step.contexts.data_ptr(),
            None if wanted is None else wanted.data_ptr(), rows, step.tables.shape[1],
            len(step.contexts), num_wanted, *map(WAYS.index, ways), self._room.data_ptr(),
        )  # fmt: skip
        if taps is not None:
            places = torch.full((rows,), -1).index_copy_(0, taps.rows, torch.arange(len(taps.rows)))
            packed.tap(taps.values, places, taps.values.shape[1] // hidden.shape[1])
        self._library.run_stack(self._shape, self._parts, packed, len(self))
        return hidden[:num_wanted]


class _Shape(ctypes.Structure):
    """Shape of stack.cpp."""

    _fields_ = [
        *((name, ctypes.c_long) for name in StackShape.__slots__[:6]),
        *((name, ctypes.c_long) for name in ("format", "attention_way")),
        *((name, ctypes.c_double) for name in ("eps", "head_eps")),
    ]


class _Step(ctypes.Structure):
    """Step of stack.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("hidden", "cos", "sin", "slots", "tables")),
        *((name, ctypes.c_void_p) for name in ("starts", "contexts", "wanted")),
        *((name, ctypes.c_long) for name in ("rows", "table_width", "num_seqs", "num_wanted")),
        *((name, ctypes.c_long) for name in ("way", "narrow_way")),
        *((name, ctypes.c_void_p) for name in ("room", "taps", "tapped")),
        *((name, ctypes.c_long) for name in ("tap_stride", "num_taps")),
    ]

    def tap(self, values: torch.Tensor, places: torch.Tensor, num_taps: int) -> None:
        """Add taps; the tensors must stay as long as this does."""
        assert values.stride(1) == 1
        assert values.dtype == torch.bfloat16
        self.taps, self.tapped = values.data_ptr(), places.data_ptr()
        self.tap_stride, self.num_taps = values.stride(0), num_taps


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
