"""Which tensors a checkpoint has: some keep the same weights in one way, some in another.

Called by `worker` before it asks the model what is to be filled. Reads headers only.
"""

from __future__ import annotations

from pathlib import Path

from qwen_engine.loader import find_files
from qwen_engine.safetensors_file import SafetensorsFile


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder, by their names.

    Raises:
        ModelNotFoundError: no safetensors there.
        CheckpointError: a file is damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in find_files(folder):
        with SafetensorsFile(path) as file:
            shapes |= {name: entry.shape for name, entry in file.entries.items()}
    return shapes
