"""The largest logit of each row, by the C++ library.

Used by `sampler` for greedy tokens, through `worker`.
"""

from __future__ import annotations

import torch

from qwen_engine.kernels.library import NativeLibrary


class Largest:
    """A function from logits to token ids, as `sampler.largest`."""

    def __init__(self, library: NativeLibrary) -> None:
        self._find = library.function("qwen_largest", "pnnpi")

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the places [rows], int64, of the largest of [rows, size]; NaN counts as that.

        Of equals the first, as torch.argmax.
        """
        if logits.dtype != torch.bfloat16:  # biases and penalties are added in float32
            return logits.max(dim=-1).indices
        logits = logits.contiguous()
        places = torch.empty(len(logits), dtype=torch.int64)
        self._find(logits.data_ptr(), *logits.shape, places.data_ptr(), torch.get_num_threads())
        return places
