"""The C++ library's part of the vision tower: what lies between its matrix products.

Used by `models.vision`. Owns the pointers and the checks that they are what C++ takes them for.
float32 and bfloat16 on a CPU. Decides nothing.
"""

from __future__ import annotations

import torch

from qwen_engine.kernels.library import NativeLibrary
from qwen_engine.kernels.ways import WAYS


class VisionLibrary:
    """The functions of vision.cpp and vision_attention.cpp."""

    def __init__(self, library: NativeLibrary) -> None:
        self._norm = library.function("qwen_vision_norm", "ipppppnnfi")
        self._gelu = library.function("qwen_vision_gelu", "ipni")
        self._turn = library.function("qwen_vision_turn", "ippppnnnnni")
        self._attend = library.function("qwen_vision_attend", "ippnnnnnnni")
        self._multiplies_pairs = library.multiplies_pairs
        self._library = library

    def runs(self, dtype: torch.dtype, head_dim: int) -> bool:
        """Say whether this processor computes a tower of this kind."""
        if dtype == torch.bfloat16:  # pairs of a head's halves
            return self._multiplies_pairs and head_dim % 4 == 0
        return dtype == torch.float32

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the layer norm of [rows, size], contiguous; `delta` is added in place first."""
        assert x.is_contiguous()
        assert delta is None or (delta.is_contiguous() and delta.shape == x.shape)
        out = torch.empty_like(x)
        size = x.shape[-1]
        self._norm(
            _is_wide(x), x.data_ptr(), None if delta is None else delta.data_ptr(),
            weight.data_ptr(), bias.data_ptr(), out.data_ptr(), x.numel() // size, size, eps,
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, contiguous, after GELU by tanh, in place."""
        assert x.is_contiguous()
        self._gelu(_is_wide(x), x.data_ptr(), x.numel(), torch.get_num_threads())
        return x

    def turn(
        self,
        qkv: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        heads: torch.Tensor,
        first: int,
    ) -> None:
        """Rotate queries and keys, and put all into `heads` from row `first` on.

        qkv: [rows, 3 × num_heads × head_dim]; turns: cos and sin, float32 [rows, head_dim]; heads:
        [3, num_heads, total rows, head_dim], for `attend` only: bfloat16 values lie in pairs of
        rows. rows and first are even.
        """
        _, num_heads, total, size = heads.shape
        cos, sin = turns
        assert len(qkv) % 2 == first % 2 == 0
        assert qkv.shape[1] == 3 * num_heads * size
        assert qkv.dtype == heads.dtype
        assert cos.shape == sin.shape == (len(qkv), size)
        assert all(each.is_contiguous() for each in (qkv, cos, sin, heads))
        self._turn(
            _is_wide(qkv), qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), heads.data_ptr(),
            len(qkv), num_heads, size, first, total, torch.get_num_threads(),
        )  # fmt: skip

    def attend(
        self, heads: torch.Tensor, rows: slice, seen: slice, num_frames: int
    ) -> torch.Tensor:
        """Return what the queries `rows` see of their frames: [rows, num_heads × head_dim].

        heads: as `turn` left it; seen: the rows of the frames, all of one even size; rows: the
        same, or a part of one frame.
        """
        _, num_heads, total, size = heads.shape
        count, frame_rows = rows.stop - rows.start, (seen.stop - seen.start) // num_frames
        assert frame_rows % 2 == seen.start % 2 == 0
        assert rows == seen or num_frames == 1
        assert heads.is_contiguous()
        output = torch.empty(count, num_heads * size, dtype=heads.dtype)
        self._attend(
            self._way(heads), heads.data_ptr(), output.data_ptr(), num_heads, total, size,
            rows.start, count, seen.start, frame_rows, torch.get_num_threads(),
        )  # fmt: skip
        return output

    def _way(self, heads: torch.Tensor) -> int:
        """Return how attention multiplies: bfloat16 in pairs, by AMX where that is the faster."""
        if heads.dtype == torch.float32:
            return WAYS.index("fma")
        return WAYS.index("tile" if self._library.attention == "tile" else "dot")


def _is_wide(x: torch.Tensor) -> int:
    return int(x.dtype == torch.float32)
