"""The checkpoint of `seeing` as it is shipped, and a copy of it where the other models are."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from tests.models import build_once, cache_dir

FOLDER = Path(__file__).with_name("seeing")
SERVED_NAME = "qwen3-vl-tiny"  # of crds/samples/qwen3-vl-tiny.yaml


def offer_seeing() -> Path:
    """Copy the checkpoint among the cached models, whose folder pods see; return the copy."""
    copy = cache_dir() / SERVED_NAME
    names = [file.name for file in FOLDER.iterdir()]
    if copy.is_dir() and filecmp.cmpfiles(FOLDER, copy, names, shallow=False)[0] != names:
        shutil.rmtree(copy)
    return build_once(copy, _fill)


def _fill(folder: Path) -> None:
    for file in FOLDER.iterdir():
        shutil.copyfile(file, folder / file.name)
