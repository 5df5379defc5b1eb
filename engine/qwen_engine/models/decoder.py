"""The decoder that Qwen3, Qwen2 and Llama share, dense or with a mixture of experts.

Pre-norm attention and SwiGLU blocks. What differs between the three are switches of
`ModelConfig`: the norms on queries and keys, the biases, the tied output, the rotary kind, and
which layers have experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from qwen_engine.host_memory import HostMemory
from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import can_pack
from qwen_engine.layers import int8
from qwen_engine.layers.attention import AttentionStep
from qwen_engine.layers.gemm import Gemm, MeasuredGemm, TorchGemm
from qwen_engine.layers.int8 import Target
from qwen_engine.layers.linear import Linear
from qwen_engine.layers.norm import RMSNorm
from qwen_engine.layers.rotary import RotaryEmbedding
from qwen_engine.layers.stack import Taps
from qwen_engine.layers.stacked import StackedLinear
from qwen_engine.model_config import ModelConfig
from qwen_engine.models.allocation import give_memory
from qwen_engine.models.attention import Attention, ForwardContext, KVCache
from qwen_engine.models.experts import Experts, StoredShapes
from qwen_engine.models.feed_forward import FeedForward
from qwen_engine.models.native_layers import NativeLayers, build_native_layers


@dataclass(frozen=True, slots=True)
class VisualRows:
    """Which tokens of a step are pictures, and what the vision tower made of them."""

    rows: torch.Tensor  # [num_visual]
    values: torch.Tensor  # [num_visual, (1 + taps) × hidden]: the embedding, then each tap's


class Layer(nn.Module):
    """One block of the decoder."""

    def __init__(self, config: ModelConfig, *, is_dense: bool) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = FeedForward(config) if is_dense else Experts(config)

    def forward(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        context: ForwardContext,
    ) -> torch.Tensor:
        """Return what is to be added to `hidden`, to which `delta` and attention are, in place."""
        attended = self.attention(self.attention_norm(hidden, delta), cache, context)
        mapped: torch.Tensor = self.feed_forward(self.feed_forward_norm(hidden, attended))
        return mapped

    def checkpoint_tensors(self, prefix: str, stored: StoredShapes) -> Iterator[tuple[str, Target]]:
        yield f"{prefix}input_layernorm.weight", self.attention_norm.weight
        yield f"{prefix}post_attention_layernorm.weight", self.feed_forward_norm.weight
        yield from self.attention.checkpoint_tensors(f"{prefix}self_attn.")
        if isinstance(self.feed_forward, Experts):
            yield from self.feed_forward.checkpoint_tensors(f"{prefix}mlp.", stored)
        else:
            yield from self.feed_forward.checkpoint_tensors(f"{prefix}mlp.")


class Decoder(nn.Module):
    """Token ids in, hidden states out; logits only for the rows that are asked for."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding) -> None:
        super().__init__()
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.layers = nn.ModuleList(
            Layer(config, is_dense=config.experts is None or index in config.dense_layers)
            for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output = (
            None
            if config.tie_word_embeddings
            else nn.Parameter(torch.empty(shape), requires_grad=False)
        )
        self.rotary = rotary
        self.traits = config.traits
        self._embedding_gemm: Gemm = TorchGemm()
        self._output_gemm: Gemm = self._embedding_gemm
        self.native_layers: NativeLayers | None = None  # for bfloat16 on a CPU
        if config.int8_weights:
            self._quantise()

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        *,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: HostMemory | None = None,
    ) -> Self:
        """Return a model with its memory, not yet filled, for positions below `max_len`.

        memory: a CPU's, of which the parameters take theirs.
        """
        rotary = RotaryEmbedding(config.rope, config.head_dim, max_len).to(dtype, device)
        with torch.device("meta"):  # shapes only, so that no wrong dtype is ever allocated
            model = cls(config, rotary)
        give_memory(model, dtype=dtype, device=device, memory=memory)
        return model

    def _quantise(self) -> None:
        """Keep the weights of all products in int8; an embedding that is only looked up stays."""
        for module in self.modules():
            if isinstance(module, Linear | StackedLinear):
                module.quantise()
        name = "embedding" if self.output is None else "output"
        shape = int8.stored_shape(*getattr(self, name).shape)
        head = torch.empty(shape, dtype=torch.int8, device=self.embedding.device)
        setattr(self, name, nn.Parameter(head, requires_grad=False))

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        *,
        slots: torch.Tensor,
        attention: AttentionStep,
        caches: list[KVCache],
        visual: VisualRows | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step: [num_tokens] ids, positions and slots → [num_wanted, hidden].

        wanted: the rows that are to be returned, rising; None: all.
        Pictures take the place of their tokens' embeddings; then each tap's part is added to
        what the first layers put out (DeepStack, arXiv 2406.04334).
        """
        cos, sin = self.rotary.lookup(positions)
        context = ForwardContext(cos, sin, slots, attention)
        hidden = self._embedding_gemm.lookup(token_ids, self.embedding).to(cos.dtype)
        size = hidden.shape[1]
        taps: Taps | None = None
        if visual is not None:
            values = visual.values.to(hidden.dtype)
            hidden.index_copy_(0, visual.rows, values[:, :size])
            if values.shape[1] > size:
                taps = Taps(visual.rows, values[:, size:])
        if self.native_layers is not None:
            done = self.native_layers.run(hidden, context, wanted=wanted, taps=taps)
            if done is not None:
                return done
        parts = () if taps is None else taps.values.chunk(taps.values.shape[1] // size, dim=1)
        delta: torch.Tensor | None = None  # of the layer before: added where it is normalised
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            delta = layer(hidden, delta, cache, context)
            if taps is not None and index < len(parts):
                hidden += delta
                delta = None
                hidden.index_add_(0, taps.rows, parts[index])
        hidden = hidden if delta is None else hidden.add_(delta)
        return hidden if wanted is None else hidden.index_select(0, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map the chosen rows [num_rows, hidden] to logits [num_rows, vocab_size]."""
        weight = self.embedding if self.output is None else self.output
        return self._output_gemm.linear(self.norm(hidden), weight, None)

    def use(self, gemm: MeasuredGemm) -> None:
        """Compute all products this way from now on; weights are repacked where they are."""
        for module in self.modules():
            if isinstance(module, Linear | StackedLinear):
                module.use(gemm)
        weight = self.embedding if self.output is None else self.output
        if can_pack(weight):
            gemm.adopt(weight)
            self._output_gemm = gemm
            if self.output is None:
                self._embedding_gemm = gemm

    def use_library(self, library: NativeLibrary) -> None:
        """Compute in C++ what lies between the products; the model is bfloat16 on a CPU."""
        for module in self.modules():
            is_wide = True
            if isinstance(module, RMSNorm):
                is_wide = len(module.weight) % 16 == 0
            elif isinstance(module, Attention):
                is_wide = module.head_dim % 32 == 0
            elif isinstance(module, FeedForward | Experts):
                is_wide = module.down.in_size % 16 == 0
            else:
                continue
            if is_wide:
                module.library = library

    def use_native_layers(
        self,
        caches: list[KVCache],
        *,
        block_size: int,
        library: NativeLibrary,
        gemm: MeasuredGemm,
    ) -> None:
        """Compute whole layers in C++ where that is possible; after `use`."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        self.native_layers = build_native_layers(
            layers, caches, block_size=block_size, library=library, gemm=gemm
        )

    def probe_weights(self) -> list[torch.Tensor]:
        """Return one large weight of each layer, to measure products with."""
        layers = (layer for layer in self.layers if isinstance(layer, Layer))
        weights = (layer.feed_forward.gate_up.weight for layer in layers)
        return [weight if weight.ndim == 2 else weight[0] for weight in weights]

    def checkpoint_tensors(self, stored: StoredShapes | None = None) -> dict[str, Target]:
        """Return, by its name in the checkpoint, every tensor that must be written.

        stored: the shapes of the checkpoint's tensors, which say how it keeps experts.
        """
        prefix = self.traits.prefix
        tensors: dict[str, Target] = {
            f"{prefix}embed_tokens.weight": int8.target_of(self.embedding),
            f"{prefix}norm.weight": self.norm.weight,
        }
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            tensors.update(layer.checkpoint_tensors(f"{prefix}layers.{index}.", stored or {}))
        if self.output is not None:
            tensors["lm_head.weight"] = int8.target_of(self.output)
        return tensors

    def is_redundant(self, name: str) -> bool:
        """Say whether a tensor of the checkpoint is not needed.

        Qwen3-0.6B ships lm_head beside tied embeddings; old Llamas ship rotary frequencies; a
        vision tower has no part in answers about text.
        """
        skipped = self.traits.skipped_prefix
        return (
            name.endswith("rotary_emb.inv_freq")
            or (name == "lm_head.weight" and self.output is None)
            or (skipped is not None and name.startswith(skipped))
        )
