"""Safetensors to parameters: streamed, each exactly once.

Called by `worker` with the tensors to fill. A file is mapped, each tensor copied straight into
its final place (its rows of a fused matrix), and its pages are let go: beside the model no
second copy of it ever exists. Reads the format itself, because that is a page of code and gives
the mapping whose pages can be let go. Knows names and shapes, no architecture.

Format: https://huggingface.co/docs/safetensors (8-byte length, JSON header, data).
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import torch

from qwen_engine.errors import CheckpointError, ModelNotFoundError
from qwen_engine.layers.fp8_blocks import BLOCK_SIZE, SCALE_SUFFIX, scales_shape, widen_blocks
from qwen_engine.layers.int8 import Target

INDEX_NAME = "model.safetensors.index.json"
# Linux 5.14: map what is cached at once. One page at a time, faults took half of the load.
_MADV_POPULATE_READ = 22
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's own limit

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FP8 = "F8_E4M3"  # matrices with scales beside them
_ALL_DTYPES = {**DTYPES, _FP8: torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights read so far, of how many."""

    bytes_done: int
    bytes_total: int


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
        try:
            with path.open("rb") as file:
                # A private mapping: torch wants writable memory, the file stays as it is.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        self.entries = self._read_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def read(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor in float32."""
        copy = torch.empty(self.entries[name].shape)
        self.copy_to(name, copy)
        return copy

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
                self._map, dtype=_ALL_DTYPES[entry.dtype], count=count, offset=entry.start
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
            width = _ALL_DTYPES[entry.dtype].itemsize if entry.dtype in _ALL_DTYPES else None
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


def load_weights(
    folder: Path,
    targets: Mapping[str, Target],
    *,
    is_redundant: Callable[[str], bool] = lambda name: False,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> None:
    """Fill every target from the checkpoint in `folder`, each exactly once.

    Raises:
        ModelNotFoundError: no safetensors there.
        CheckpointError: damaged; or names are missing, left over, twice there or misshapen.
    """
    paths = find_files(folder)
    bytes_total = sum(path.stat().st_size for path in paths)
    bytes_done, scales = 0, _read_scales(paths, is_redundant)
    filled: dict[str, Path] = {}
    for path in paths:
        with SafetensorsFile(path) as file:
            for name, entry in file.entries.items():
                if not is_redundant(name) and not name.endswith(SCALE_SUFFIX):
                    _check_once(name, path, filled)
                    _check_entry(name, entry, targets.get(name))
                    found = _check_scales(name, entry, scales.pop(name, None))
                    file.copy_to(name, targets[name], found)
                bytes_done += entry.num_bytes
                if on_progress is not None:
                    on_progress(LoadProgress(bytes_done, bytes_total))
    if scales:
        raise CheckpointError(
            f"{folder}: there are scales of {_listing(sorted(scales))}, but no such tensors",
            names=scales,
        )
    missing = sorted(targets.keys() - filled.keys())
    if missing:
        raise CheckpointError(
            f"{folder}: the checkpoint lacks {_listing(missing)}: is a shard missing?",
            names=missing,
        )
    if on_progress is not None:
        on_progress(LoadProgress(bytes_total, bytes_total))


def _parse_entry(fields: Mapping[str, Any], data_start: int) -> TensorEntry:
    first, last = fields["data_offsets"]
    shape = tuple(fields["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in (*shape, first, last)):
        raise ValueError(f"shape {shape} or offsets {first}, {last}")
    return TensorEntry(str(fields["dtype"]), shape, data_start + first, last - first)


def find_files(folder: Path) -> list[Path]:
    """Return a checkpoint's files. Raises as `load_weights` does."""
    index = folder / INDEX_NAME
    if index.exists():
        paths = [folder / name for name in _read_index(index)]
        absent = [path.name for path in paths if not path.is_file()]
        if absent:
            raise CheckpointError(
                f"{folder}: {INDEX_NAME} names {_listing(absent)}, absent from the folder",
                names=absent,
            )
        return paths
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelNotFoundError(folder, "there are no *.safetensors files in this folder")
    return paths


def _read_index(index: Path) -> Iterator[str]:
    try:
        names = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: cannot be read: {error!r}") from error
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise CheckpointError(f"{index}: names files outside its folder", names=outside)
    yield from sorted(names)


def _check_once(name: str, path: Path, filled: dict[str, Path]) -> None:
    if name in filled:
        raise CheckpointError(
            f"{name} is in both {filled[name].name} and {path.name}", names=[name]
        )
    filled[name] = path


def _read_scales(paths: list[Path], is_redundant: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """Return the scales of an FP8 checkpoint by the names of their matrices.

    Read first and kept: they may lie after the matrix or in another file, and are small.
    """
    scales = {}
    for path in paths:
        with SafetensorsFile(path) as file:
            for name, entry in file.entries.items():
                of = name.removesuffix(SCALE_SUFFIX)
                if of == name or is_redundant(of):
                    continue
                if entry.dtype not in DTYPES:
                    raise CheckpointError(f"{name} has dtype {entry.dtype}: scales are floats")
                scales[of] = file.read(name)
    return scales


def _check_scales(
    name: str, entry: TensorEntry, scales: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the scales, which an FP8 matrix must have and nothing else may."""
    if (scales is not None) != (entry.dtype == _FP8):
        is_there = "no" if scales is None else "a"
        raise CheckpointError(
            f"{name} has dtype {entry.dtype} and {is_there} {name}{SCALE_SUFFIX} beside it: FP8 is "
            f"read as {_FP8} with a scale for each block of {BLOCK_SIZE} × {BLOCK_SIZE}",
            names=[name],
        )
    if scales is not None and tuple(scales.shape) != scales_shape(entry.shape):
        raise CheckpointError(
            f"{name} {list(entry.shape)} has scales {list(scales.shape)}: blocks of {BLOCK_SIZE} × "
            f"{BLOCK_SIZE} have {list(scales_shape(entry.shape))}",
            names=[name],
        )
    return scales


def _check_entry(name: str, entry: TensorEntry, target: Target | None) -> None:
    if target is None:
        raise CheckpointError(
            f"the checkpoint has {name} {list(entry.shape)}, for which this model has no "
            "parameter: do config.json and the weights belong together?",
            names=[name],
        )
    if entry.dtype not in _ALL_DTYPES:
        raise CheckpointError(
            f"{name} has dtype {entry.dtype}; {', '.join(_ALL_DTYPES)} can be loaded: use the "
            "unquantised checkpoint, with --quantization int8 for 8-bit weights",
            names=[name],
        )
    if entry.shape != tuple(target.shape):
        raise CheckpointError(
            f"{name} has shape {list(entry.shape)}, but config.json asks for {list(target.shape)}",
            names=[name],
        )


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
