"""Files to patches: ours, transformers' Pillow processor, and its torchvision one in vLLM's peer.

The latter runs in a process of its own, as torchvision is not among our packages.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.engines import NUM_CORES, REPOSITORY, peers_dir
from tests.bench.runners.pictures_processor import SETTINGS, processor_of
from tests.bench.vision.pictures import encoded, picture
from tests.bench.vision.turns import Row


@contextmanager
def preprocessing_rows(wanted: Callable[[str], bool]) -> Iterator[list[Row]]:
    """Yield the rows whose names are wanted; the other process lives as long."""
    names = {f"preprocessing: {name}": name for name in ("12-megapixel JPEG", "1920×1080 PNG",
                                                        "20 thumbnails")}  # fmt: skip
    chosen = [name for name in names if wanted(name)]
    if not chosen:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder, _torchvision_side() as run:
        rows = []
        for name in chosen:
            files = _files(names[name])
            sides: dict[str, Callable[[], object]] = {
                "ours": _ours(files),
                "transformers (Pillow)": _theirs(files),
            }
            if run is not None:
                sides["transformers (torchvision)"] = _elsewhere(run, files, Path(folder) / name)
            rows.append(Row(name, sides))
        yield rows


def _files(name: str) -> list[bytes]:
    if name == "12-megapixel JPEG":
        return [encoded(picture(4000, 3000), "JPEG")]
    if name == "1920×1080 PNG":
        return [encoded(picture(1920, 1080), "PNG")]
    return [encoded(picture(160 + number, 120, number), "JPEG") for number in range(20)]


def _ours(files: list[bytes]) -> Callable[[], object]:
    from qwen_engine.vision.images import read_image
    from qwen_engine.vision.settings import ProcessorSettings

    settings = ProcessorSettings()
    assert settings.min_pixels == SETTINGS["size"]["shortest_edge"]
    assert settings.max_pixels == SETTINGS["size"]["longest_edge"]
    return lambda: [read_image(each, settings, item="").decode() for each in files]


def _theirs(files: list[bytes]) -> Callable[[], object]:
    from transformers import Qwen2VLImageProcessorPil

    return processor_of(Qwen2VLImageProcessorPil, files)


Run = Callable[[str], object]


@contextmanager
def _torchvision_side() -> Iterator[Run | None]:
    python = peers_dir() / "vllm" / "bin" / "python"
    if not python.exists():
        yield None
        return
    process = subprocess.Popen(
        [python, "-m", "tests.bench.runners.pictures_processor"], cwd=REPOSITORY, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(NUM_CORES), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def run(folder: str) -> object:
        stdin.write(folder + "\n")
        stdin.flush()
        return stdout.readline()

    try:
        yield run if stdout.readline().strip() == "ready" else None
    finally:
        stdin.close()
        process.wait(timeout=60)


def _elsewhere(run: Run, files: list[bytes], folder: Path) -> Callable[[], object]:
    folder.mkdir()
    for index, each in enumerate(files):
        (folder / f"{index:02}").write_bytes(each)
    return lambda: run(str(folder))
