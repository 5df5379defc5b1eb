"""The largest logit of each row, by torch or by the C++ library.

Used by `sampler` for greedy tokens, through `worker`.
"""

from __future__ import annotations

import torch

from qwen_engine.kernels.library import NativeLibrary


def largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the place of each row's largest logit, of equals the first: [rows, size] → [rows].

    As argmax, which on CPUs takes 11 ms instead of 4 for 16 rows of 151,936.
    """
    return logits.max(dim=-1).indices


class Largest:
    """`largest`, for bfloat16 in C++."""

    def __init__(self, library: NativeLibrary) -> None:
        self._find = library.function("qwen_largest", "pnnpi")

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the places [rows], int64, of the largest of [rows, size]; NaN counts as that.

        Of equals the first, as torch.argmax.
        """
        if logits.dtype != torch.bfloat16:  # biases and penalties are added in float32
            return largest(logits)
        logits = logits.contiguous()
        places = torch.empty(len(logits), dtype=torch.int64)
        self._find(logits.data_ptr(), *logits.shape, places.data_ptr(), torch.get_num_threads())
        return places
