"""The decoder's layers in C++: when that is possible, and what of the model goes where.

Built by `worker` when weights and caches are in place; the decoder asks it first at each step and
otherwise computes layer by layer, operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from qwen_engine.kernels.library import ATTENTION_SIZES, NativeLibrary
from qwen_engine.layers.stack import (
    LayerStack,
    Product,
    StackLayer,
    StackShape,
    StackStep,
    Ways,
)
from qwen_engine.layers.attention.native import NativeStep
from qwen_engine.layers.gemm import MeasuredGemm
from qwen_engine.layers.linear import Linear

if TYPE_CHECKING:
    from qwen_engine.models.decoder import ForwardContext, KVCache, Layer


class NativeLayers:
    """All layers of a decoder as one stack."""

    def __init__(self, stack: LayerStack, gemm: MeasuredGemm) -> None:
        self._stack, self._gemm = stack, gemm

    def run(
        self,
        hidden: torch.Tensor,
        context: ForwardContext,
        *,
        wanted: torch.Tensor | None,
        taps: Sequence[torch.Tensor] = (),
        tapped_rows: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return the wanted rows [num_wanted, hidden] after all layers; None: not possible.

        taps: what the first layers' outputs at `tapped_rows` are increased by, one for each.
        """
        ways = self._ways(len(hidden), len(hidden) if wanted is None else len(wanted))
        attention = context.attention
        if ways is None or not isinstance(attention, NativeStep):
            return None
        step = StackStep(
            context.cos.contiguous(), context.sin.contiguous(), context.slots,
            attention.tables, attention.starts, attention.contexts,
        )  # fmt: skip
        for index, tap in enumerate(taps):
            self._stack.run(hidden, step, layers=(index, index + 1), ways=ways)
            assert tapped_rows is not None
            hidden.index_add_(0, tapped_rows, tap)
        rest = len(taps), len(self._stack)
        is_narrowed = wanted is not None and len(wanted) < len(hidden)
        return self._stack.run(
            hidden, step, layers=rest, ways=ways, wanted=wanted if is_narrowed else None
        )

    def _ways(self, num_rows: int, num_wanted: int) -> Ways | None:
        first, second = self._gemm.native_way(num_rows), self._gemm.native_way(max(1, num_wanted))
        return None if first is None or second is None else (first, second)


def build_native_layers(
    layers: Sequence[Layer],
    caches: Sequence[KVCache],
    *,
    block_size: int,
    library: NativeLibrary,
    gemm: MeasuredGemm,
) -> NativeLayers | None:
    """Return the layers as a stack; None: they have sizes that its kernels have not."""
    parts = [_layer(*pair) for pair in zip(layers, caches, strict=True)]
    attention, feed_forward = layers[0].attention, layers[0].feed_forward
    hidden, inner = attention.qkv.in_size, feed_forward.down.in_size
    is_possible = attention.head_dim in ATTENTION_SIZES and hidden % 16 == inner % 32 == 0
    if not is_possible or not all(_is_packed(layer, gemm) for layer in layers):
        return None
    norm = layers[0].attention_norm
    shape = StackShape(
        hidden=hidden,
        inner=inner,
        heads=attention.num_heads[0],
        kv_heads=attention.num_heads[1],
        head_size=attention.head_dim,
        block_size=block_size,
        eps=norm.eps,
        head_eps=norm.eps if attention.q_norm is None else attention.q_norm.eps,
    )
    return NativeLayers(LayerStack(library, shape, parts), gemm)


def _linears(layer: Layer) -> tuple[Linear, Linear, Linear, Linear]:
    attention, feed_forward = layer.attention, layer.feed_forward
    return attention.qkv, attention.o_proj, feed_forward.gate_up, feed_forward.down


def _is_packed(layer: Layer, gemm: MeasuredGemm) -> bool:
    return all(linear.is_packed_for(gemm) for linear in _linears(layer))


def _layer(layer: Layer, cache: KVCache) -> StackLayer:
    attention = layer.attention
    q_norm, k_norm = attention.q_norm, attention.k_norm
    return StackLayer(
        norms=(
            layer.attention_norm.weight,
            layer.feed_forward_norm.weight,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
        ),
        products=tuple(map(_product, _linears(layer))),  # type: ignore[arg-type]
        cache=cache,
    )


def _product(linear: Linear) -> Product:
    return linear.weight, linear.bias
