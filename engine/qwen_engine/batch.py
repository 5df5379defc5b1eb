"""Scheduled sequences to tensors.

Called by `worker` once per step. Python touches each sequence, never each token: positions,
slots and tables come from numpy. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from qwen_engine.layers.attention import AttentionMetadata
from qwen_engine.sequence import ScheduledBatch, Sequence


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step's tokens, packed: no padding between sequences."""

    token_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens]
    slots: torch.Tensor  # [num_tokens], where K and V of each token go
    last_rows: torch.Tensor  # [num_sampled], rows whose logits are needed
    attention: AttentionMetadata
    sampled: tuple[Sequence, ...]  # whose next tokens they are


def build_model_input(
    batch: ScheduledBatch, *, block_size: int, device: torch.device
) -> ModelInput:
    """Pack a batch for the model."""
    entries = batch.entries
    lens = np.array([entry.num_tokens for entry in entries])
    starts = np.array([entry.start for entry in entries])
    query_starts = np.concatenate(([0], np.cumsum(lens)))
    owners = np.repeat(np.arange(len(entries)), lens)  # row → index of its sequence
    positions = np.arange(batch.num_tokens) - np.repeat(query_starts[:-1] - starts, lens)
    tables = _stack_tables([entry.sequence for entry in entries])
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    needs_token = np.array([entry.needs_token for entry in entries])
    return ModelInput(
        token_ids=torch.from_numpy(_pack_tokens(batch)).to(device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        last_rows=torch.from_numpy(query_starts[1:][needs_token] - 1).to(device),
        attention=AttentionMetadata(query_starts, starts + lens, tables, block_size),
        sampled=tuple(entry.sequence for entry in entries if entry.needs_token),
    )


def _pack_tokens(batch: ScheduledBatch) -> np.ndarray:
    chunks = (
        entry.sequence.token_ids[entry.start : entry.start + entry.num_tokens]
        for entry in batch.entries
    )
    return np.fromiter(chain.from_iterable(chunks), dtype=np.int64, count=batch.num_tokens)


def _stack_tables(sequences: list[Sequence]) -> np.ndarray:
    """Return the block tables as rows, padded with 0, which is a block like any other."""
    longest = max(len(sequence.block_table) for sequence in sequences)
    tables = np.zeros((len(sequences), longest), dtype=np.int64)
    for row, sequence in zip(tables, sequences, strict=True):
        # The view must not outlive this line: an array in view cannot grow.
        row[: len(sequence.block_table)] = np.frombuffer(sequence.block_table, dtype=np.intc)
    return tables
