"""Attention over a paged KV cache, behind one narrow interface.

`interface` says what a backend is given and must do; `sdpa` is plain torch made fast enough for
CPUs and correct on CUDA; `reference` is the slow oracle that the others are tested against.
"""

from __future__ import annotations

from qwen_engine.config import BackendName
from qwen_engine.layers.attention.interface import (
    AttentionBackend,
    AttentionMetadata,
    AttentionStep,
    store_kv,
)
from qwen_engine.layers.attention.reference import ReferenceBackend
from qwen_engine.layers.attention.sdpa import SdpaBackend

__all__ = [
    "AttentionBackend",
    "AttentionMetadata",
    "AttentionStep",
    "build_backend",
    "store_kv",
]


def build_backend(name: BackendName) -> AttentionBackend:
    """Return the backend of that name."""
    return ReferenceBackend() if name == "reference" else SdpaBackend()
