"""Rotary position embedding, with the ways of stretching it that checkpoints use.

Frequencies follow transformers 5.24 modeling_rope_utils.py step by step and in float32, because
greedy ids are compared with transformers'.
"""

from __future__ import annotations

import math
from typing import Self

import torch

from qwen_engine.model_config import RopeConfig


class RotaryEmbedding:
    """Cosines and sines of every position up to `max_len`, computed once."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_len: int) -> None:
        positions = torch.arange(max_len, dtype=torch.float32)
        angles = torch.outer(positions, _inverse_frequencies(rope, head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        self._cos = angles.cos() * rope.attention_factor  # [max_len, head_dim]
        self._sin = angles.sin() * rope.attention_factor
        self._axes = _axes(rope, head_dim)

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Move the tables to where and how the model computes."""
        self._cos, self._sin = self._cos.to(device, dtype), self._sin.to(device, dtype)
        self._axes = self._axes.to(device)
        return self

    def lookup(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin for positions [num_tokens], each [num_tokens, 1, head_dim].

        Positions [3, num_tokens] are those in time, row and column; each frequency follows one.
        """
        if positions.ndim == 2:
            places = positions.index_select(0, self._axes).T  # [num_tokens, head_dim]
            return self._cos.gather(0, places)[:, None], self._sin.gather(0, places)[:, None]
        return (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._sin.index_select(0, positions).unsqueeze(1),
        )


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [num_tokens, num_heads, head_dim] by the angles of its tokens."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inverse = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inverse / rope.factor
    if rope.kind == "llama3":
        return _llama3(inverse, rope)
    if rope.kind == "yarn":
        return _yarn(inverse, rope, head_dim)
    return inverse


def _axes(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return the axis of positions that each dimension follows: T H W T H W … T T T.

    After transformers 5.24 models/qwen3_vl, recomposition_frequencies: rows and columns take
    every third frequency, as many as their section has.
    """
    axes = torch.zeros(head_dim // 2, dtype=torch.int64)
    for axis, count in enumerate(rope.mrope_sections[1:], start=1):
        axes[axis : 3 * count : 3] = axis
    return torch.cat((axes, axes))


def _llama3(inverse: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Keep short wavelengths, divide long ones by the factor, blend between."""
    wavelengths = 2 * math.pi / inverse
    longest = rope.original_max_len / rope.low_freq_factor
    shortest = rope.original_max_len / rope.high_freq_factor
    stretched = torch.where(wavelengths > longest, inverse / rope.factor, inverse)
    share = (rope.original_max_len / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * stretched / rope.factor + share * stretched
    is_between = ~(wavelengths < shortest) & ~(wavelengths > longest)
    return torch.where(is_between, blended, stretched)


def _yarn(inverse: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Interpolate the slow dimensions, keep the fast ones (arXiv 2309.00071)."""

    def dimension(num_rotations: float) -> float:
        turns = rope.original_max_len / (num_rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as upstream does, so as not to divide by zero
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    return inverse / rope.factor * (1 - kept) + inverse * kept
