"""The decoder's layers in C++: when that is possible, and what of the model goes where.

Built by `worker` when weights and caches are in place; the decoder asks it first at each step and
otherwise computes layer by layer, operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from qwen_engine.kernels.library import ATTENTION_SIZES, NativeLibrary
from qwen_engine.layers.attention.native import NativeStep
from qwen_engine.layers.gemm import MeasuredGemm
from qwen_engine.layers.linear import Linear
from qwen_engine.layers.stack import (
    LayerStack,
    StackLayer,
    StackShape,
    StackStep,
    Taps,
    Ways,
)
from qwen_engine.models.attention import ForwardContext, KVCache
from qwen_engine.models.feed_forward import FeedForward

if TYPE_CHECKING:
    from qwen_engine.models.decoder import Layer


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
        taps: Taps | None = None,
    ) -> torch.Tensor | None:
        """Return the wanted rows [num_wanted, hidden] after all layers; None: not possible."""
        ways = self._ways(len(hidden), len(hidden) if wanted is None else len(wanted))
        attention = context.attention
        if ways is None or not isinstance(attention, NativeStep):
            return None
        step = StackStep(
            context.cos.contiguous(), context.sin.contiguous(), context.slots,
            attention.tables, attention.starts, attention.contexts,
        )  # fmt: skip
        is_narrowed = wanted is not None and len(wanted) < len(hidden)
        return self._stack.run(
            hidden, step, ways=ways, wanted=wanted if is_narrowed else None, taps=taps
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
    """Return the layers as a stack; None: they have parts or sizes that its kernels have not."""
    linears = [four for layer in layers if (four := _linears(layer)) is not None]
    attention, norm = layers[0].attention, layers[0].attention_norm
    is_dense = len(linears) == len(layers)
    is_packed = all(linear.is_packed_for(gemm) for four in linears for linear in four)
    if not is_dense or not is_packed or attention.head_dim not in ATTENTION_SIZES:
        return None
    parts = [_layer(*three) for three in zip(layers, linears, caches, strict=True)]
    hidden, inner = linears[0][0].in_size, linears[0][3].in_size
    if hidden % 32 or inner % 32:
        return None
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


Linears = tuple[Linear, Linear, Linear, Linear]  # qkv, output, gate and up, down


def _linears(layer: Layer) -> Linears | None:
    attention, feed_forward = layer.attention, layer.feed_forward
    if not isinstance(feed_forward, FeedForward):
        return None
    return attention.qkv, attention.o_proj, feed_forward.gate_up, feed_forward.down


def _layer(layer: Layer, linears: Linears, cache: KVCache) -> StackLayer:
    q_norm, k_norm = layer.attention.q_norm, layer.attention.k_norm
    qkv, output, gate_up, down = ((linear.weight, linear.bias) for linear in linears)
    return StackLayer(
        norms=(
            layer.attention_norm.weight,
            layer.feed_forward_norm.weight,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
        ),
        products=(qkv, output, gate_up, down),
        cache=cache,
    )
