"""The file format of weights: safetensors.

Used by `loader`. Reads the format itself: that is a page of code, and gives both ways in,
reading straight into a tensor's memory, and a mapping whose pages can be let go.

Format: https://huggingface.co/docs/safetensors (8-byte length, JSON header, data).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import torch

from qwen_engine.errors import CheckpointError
from qwen_engine.layers.fp8_blocks import widen_blocks
from qwen_engine.layers.int8 import Target

# Linux 5.14: map what is cached at once. One page at a time, faults took half of the load.
_MADV_POPULATE_READ = 22
_MOST_AT_ONCE = 2**30  # bytes asked of one read; Linux gives 2 GiB at most
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's own limit

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FP8 = "F8_E4M3"  # matrices with scales beside them
ALL_DTYPES = {**DTYPES, FP8: torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where in the file a tensor lies, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    num_bytes: int


class SafetensorsFile:
    """One mapped file; a context manager."""

    def __init__(self, path: Path) -> None:
        """Map the file and check its header against its size.

        Raises:
            CheckpointError: it is damaged.
        """
        self.path = path
        with ExitStack() as opened:
            try:
                self._file = opened.enter_context(path.open("rb", buffering=0))
                # A private mapping: torch wants writable memory, the file stays as it is.
                self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{path}: cannot be read: {error}") from error
            self.entries = self._read_header()
            opened.pop_all()  # it stays open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        self._file.close()

    def read(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor in float32."""
        copy = torch.empty(self.entries[name].shape)
        self.copy_to(name, copy)
        return copy

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Read a tensor into contiguous memory of its own dtype; several threads may.

        Raises:
            CheckpointError: the file has become shorter, or cannot be read.
        """
        entry = self.entries[name]
        done, first = 0, target.data_ptr()
        while done < entry.num_bytes:
            length = min(entry.num_bytes - done, _MOST_AT_ONCE)
            piece = (ctypes.c_char * length).from_address(first + done)
            try:
                count = os.preadv(self._file.fileno(), [piece], entry.start + done)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read: {error}") from error
            if not count:
                raise CheckpointError(f"{self.path} became shorter while it was read")
            done += count

    def copy_to(self, name: str, target: Target, scales: torch.Tensor | None = None) -> None:
        """Copy a tensor into `target`, converting its dtype, and let its pages go.

        scales: float32, one for each block of an FP8 matrix.
        """
        entry = self.entries[name]
        count = prod(entry.shape)
        first_page = entry.start // mmap.PAGESIZE * mmap.PAGESIZE
        length = entry.start + entry.num_bytes - first_page
        if count:
            self._advise(_MADV_POPULATE_READ, first_page, length)
            source = torch.frombuffer(
                self._map, dtype=ALL_DTYPES[entry.dtype], count=count, offset=entry.start
            ).view(entry.shape)
            if scales is None:
                target.copy_(source)
            else:
                widen_blocks(source, scales, target)
            del source  # the mapping cannot be closed while it is seen
        if count:
            self._advise(mmap.MADV_DONTNEED, first_page, length)

    def _advise(self, advice: int, start: int, length: int) -> None:
        with suppress(OSError):  # a system that does not know it does without
            self._map.madvise(advice, start, length)

    def _read_header(self) -> dict[str, TensorEntry]:
        size = len(self._map)
        header_size = int.from_bytes(self._map[:8], "little")
        if size < 8 or header_size > min(size - 8, MAX_HEADER_BYTES):
            raise self._damaged(f"a header of {header_size} bytes in a file of {size}")
        try:
            header = json.loads(self._map[8 : 8 + header_size])
            header.pop("__metadata__", None)
            entries = {
                name: _parse_entry(fields, 8 + header_size) for name, fields in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"its header cannot be read: {error!r}") from error
        self._check_layout(entries, 8 + header_size)
        return entries

    def _check_layout(self, entries: dict[str, TensorEntry], data_start: int) -> None:
        """Tensors must fill the data without gap or overlap, as the format demands."""
        position = data_start
        for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
            width = ALL_DTYPES[entry.dtype].itemsize if entry.dtype in ALL_DTYPES else None
            if width is not None and entry.num_bytes != prod(entry.shape) * width:
                raise self._damaged(f"{name}: shape {list(entry.shape)} and size disagree")
            if entry.start != position or entry.num_bytes < 0:
                raise self._damaged(f"{name}: a gap or an overlap before it")
            position += entry.num_bytes
        if position != len(self._map):
            raise self._damaged(
                f"its tensors end at byte {position}, the file at {len(self._map)} (cut short?)"
            )

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is not a sound safetensors file: {why}")


def _parse_entry(fields: Mapping[str, Any], data_start: int) -> TensorEntry:
    first, last = fields["data_offsets"]
    shape = tuple(fields["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in (*shape, first, last)):
        raise ValueError(f"shape {shape} or offsets {first}, {last}")
    return TensorEntry(str(fields["dtype"]), shape, data_start + first, last - first)
