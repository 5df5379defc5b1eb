"""The first version of chart and operator, out of this repository's history.

For the proof that an upgrade from it works: its chart packed by Helm, its operator as an image of
its own source (with today's Python packages).
"""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cluster.images import Image, python_image
from tests.cluster.paths import REPOSITORY

IMAGE = "localhost/qwen-operator:first"
_CHART = "charts/qwen-operator"
_SOURCE = ("engine/qwen_engine", "operator/qwen_operator")
_INSIDE = "opt/first"


def unpack_first_version(target: Path) -> Path:
    """Unpack chart and source as they were when the chart began; return the folder."""
    if _git("rev-parse", "--is-shallow-repository").strip() == b"true":
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("this clone has no history: git fetch --unshallow")
    began = _git("log", "--follow", "--format=%H", "--", f"{_CHART}/Chart.yaml").split()[-1]
    archive = _git("archive", began.decode(), _CHART, "crds", *_SOURCE)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return target


def operator_image(folder: Path) -> Image:
    """Return the image of the operator whose source is in `folder`."""
    image = python_image(IMAGE, command="qwen-operator", module="qwen_operator.__main__")
    source = {
        f"{_INSIDE}/{path.relative_to(folder)}": (path.read_bytes(), 0o644)
        for name in _SOURCE
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }
    places = ":".join(f"/{_INSIDE}/{name.partition('/')[0]}" for name in _SOURCE)
    env = [e for e in image.config["Env"] if not e.startswith("PYTHONPATH=")]  # type: ignore[attr-defined]
    return dataclasses.replace(
        image,
        config={**image.config, "Env": [*env, f"PYTHONPATH={places}"]},
        files={**image.files, **source},
    )


def _git(*args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=REPOSITORY, capture_output=True, check=True).stdout
