"""Attention over a paged KV cache, behind one narrow interface.

`interface` says what a backend is given and must do; `native` is C++ for bfloat16 on CPUs; `sdpa`
is plain torch made fast enough for CPUs and correct on CUDA; `reference` is the slow oracle that
the others are tested against.
"""

from __future__ import annotations

from qwen_engine.config import BackendName
from qwen_engine.kernels.library import ATTENTION_SIZES, NativeLibrary
from qwen_engine.layers.attention.interface import (
    AttentionBackend,
    AttentionMetadata,
    AttentionStep,
    store_kv,
)
from qwen_engine.layers.attention.native import NativeBackend, choose_kernel
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.attention.sdpa import SdpaBackend

__all__ = [
    "AttentionBackend",
    "AttentionMetadata",
    "AttentionStep",
    "build_backend",
    "choose_kernel",
    "store_kv",
]


def build_backend(
    name: BackendName, *, library: NativeLibrary | None = None, head_dim: int = 0
) -> AttentionBackend:
    """Return the backend of that name; for `sdpa` the library's, if it has this head's size.

    library: only where the model is bfloat16 on a CPU.
    """
    if name == "reference":
        return ReferenceBackend()
    if library is not None and head_dim in ATTENTION_SIZES:
        return NativeBackend(library)
    return SdpaBackend()
