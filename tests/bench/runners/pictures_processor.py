"""transformers' processor of pictures: `python -m tests.bench.runners.pictures_processor`.

A line in: a folder of files. A line out: they were read from memory, resized and cut. In vLLM's
environment, which has torchvision, by the processor that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    "patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip


def processor_of(kind: Callable[..., Any], files: list[bytes]) -> Callable[[], object]:
    """Return what decodes and prepares the files."""
    from PIL import Image

    processor = kind(**SETTINGS)
    return lambda: processor(
        [Image.open(BytesIO(each)).convert("RGB") for each in files], return_tensors="pt"
    )


def main() -> None:
    import torch
    import torchvision  # noqa: F401 - without it another processor would be measured
    from transformers import Qwen2VLImageProcessor

    torch.set_grad_enabled(False)
    works: dict[str, Callable[[], object]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        folder = line.strip()
        if folder not in works:
            files = [file.read_bytes() for file in sorted(Path(folder).iterdir())]
            works[folder] = processor_of(Qwen2VLImageProcessor, files)
        works[folder]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
