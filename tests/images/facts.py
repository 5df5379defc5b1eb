"""What an image is, as podman tells it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.paths import REPOSITORY
from tests.images.podman import BASE, Podman

_CONTEXT = ("docker", "engine", "operator", "crds", "constraints.txt", ".dockerignore")


def megabytes_above_base(podman: Podman, image: str) -> float:
    """Return what an image holds beyond its base, unpacked."""
    return float((podman.inspect(image)["Size"] - podman.inspect(BASE)["Size"]) / 1e6)


def num_new_layers(podman: Podman, before: str, after: str) -> int:
    """Return how many layers a registry that has `before` is sent for `after`.

    Layers are one above the other, so all above the first that differs are new.
    """
    old, new = (podman.inspect(image)["RootFS"]["Layers"] for image in (before, after))
    same = [a == b for a, b in zip(old, new, strict=True)]
    return len(new) - (same.index(False) if False in same else len(new))


def code_megabytes(podman: Podman, image: str) -> float:
    """Return our own layers' size as it is sent: compressed."""
    program = (
        "import io, tarfile; sent = io.BytesIO()\n"
        "with tarfile.open(fileobj=sent, mode='w:gz') as tar: tar.add('/opt/code')\n"
        "print(len(sent.getvalue()))"
    )
    return int(python_in(podman, image, program)) / 1e6


def copy_of_the_sources(folder: Path) -> Path:
    """Return a build context like this clone's, to change something in."""
    for name in _CONTEXT:
        source, target = REPOSITORY / name, folder / name
        if source.is_dir():
            junk = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.so")
            shutil.copytree(source, target, symlinks=True, ignore=junk)
        else:
            shutil.copy(source, target)
    return folder


def python_in(podman: Podman, image: str, program: str) -> str:
    """Run a program with an image's own Python, without network and on a read-only root."""
    words = ("run", "--rm", "--network=none", "--read-only", "--entrypoint=/opt/venv/bin/python3")
    return podman.run(*words, image, "-c", program)
