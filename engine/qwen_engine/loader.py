"""Safetensors to parameters, each exactly once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights read so far, of how many."""

    bytes_done: int
    bytes_total: int
