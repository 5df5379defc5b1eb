"""Safetensors to parameters: streamed, each exactly once.

Called by `worker` with the tensors to fill. Each tensor is read straight into its final place (its
rows of a fused matrix), several at once. What must be converted is mapped, and its pages are let
go: beside the model no second copy of it ever exists. Knows names and shapes, no architecture.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from qwen_engine.errors import CheckpointError, ModelNotFoundError
from qwen_engine.layers.fp8_blocks import BLOCK_SIZE, SCALE_SUFFIX, scales_shape
from qwen_engine.layers.int8 import Target
from qwen_engine.safetensors_file import ALL_DTYPES, DTYPES, FP8, SafetensorsFile, TensorEntry

INDEX_NAME = "model.safetensors.index.json"
_MOST_READERS = 8  # files are read by that many threads at most


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights read so far, of how many."""

    bytes_done: int
    bytes_total: int


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
    progress = _Progress(sum(path.stat().st_size for path in paths), on_progress)
    scales = _read_scales(paths, is_redundant)
    filled: dict[str, Path] = {}
    num_readers = min(torch.get_num_threads(), _MOST_READERS)
    for path in paths:
        with SafetensorsFile(path) as file, ThreadPoolExecutor(num_readers) as readers:
            pending: list[Future[None]] = []
            for name, entry in file.entries.items():
                if is_redundant(name) or name.endswith(SCALE_SUFFIX):
                    progress.add(entry.num_bytes)
                    continue
                _check_once(name, path, filled)
                _check_entry(name, entry, targets.get(name))
                fill = _Fill(file, name, targets[name], progress)
                found = _check_scales(name, entry, scales.pop(name, None))
                if fill.is_plain:
                    pending.append(readers.submit(fill.read))
                else:
                    fill.convert(found)  # by torch, which has threads of its own
            for each in pending:
                each.result()
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
    progress.end()


class _Progress:
    """Counts the bytes that several threads have read, and tells."""

    def __init__(
        self, bytes_total: int, on_progress: Callable[[LoadProgress], None] | None
    ) -> None:
        self._bytes_total = bytes_total
        self._bytes_done = 0
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._bytes_done += num_bytes
            if self._on_progress is not None:
                self._on_progress(LoadProgress(self._bytes_done, self._bytes_total))

    def end(self) -> None:
        """Tell that all is there: headers are bytes too."""
        self.add(self._bytes_total - self._bytes_done)


@dataclass(frozen=True, slots=True)
class _Fill:
    """One tensor's way from the file to its place."""

    file: SafetensorsFile
    name: str
    target: Target
    progress: _Progress

    @property
    def is_plain(self) -> bool:
        """The file's bytes are the tensor's."""
        place, dtype = self.target, self.file.entries[self.name].dtype
        return (
            isinstance(place, torch.Tensor)
            and place.device.type == "cpu"
            and place.is_contiguous()
            and place.dtype == DTYPES.get(dtype)
        )

    def read(self) -> None:
        assert isinstance(self.target, torch.Tensor)
        self.file.read_into(self.name, self.target)
        self.progress.add(self.file.entries[self.name].num_bytes)

    def convert(self, scales: torch.Tensor | None) -> None:
        self.file.copy_to(self.name, self.target, scales)
        self.progress.add(self.file.entries[self.name].num_bytes)


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
    if (scales is not None) != (entry.dtype == FP8):
        is_there = "no" if scales is None else "a"
        raise CheckpointError(
            f"{name} has dtype {entry.dtype} and {is_there} {name}{SCALE_SUFFIX} beside it: FP8 is "
            f"read as {FP8} with a scale for each block of {BLOCK_SIZE} × {BLOCK_SIZE}",
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
    if entry.dtype not in ALL_DTYPES:
        raise CheckpointError(
            f"{name} has dtype {entry.dtype}; {', '.join(ALL_DTYPES)} can be loaded: use the "
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
