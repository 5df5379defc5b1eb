"""podman, and the operator's image built from this clone."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.images.podman import Podman, here

OPERATOR = "localhost/qwen-operator:built"
ENGINE = "localhost/qwen-engine:built"


@pytest.fixture(scope="session")
def podman() -> Podman:
    """podman with its base image; skips where there is none, which fails on CI."""
    if os.geteuid() != 0:
        pytest.skip("images are built as root")
    if missing := [name for name in ("podman", "debootstrap") if not shutil.which(name)]:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end(f"{', '.join(missing)} missing: `make install` as root gets them")
    found = here()
    found.ensure_base()
    return found


@pytest.fixture(scope="session")
def operator_image(podman: Podman) -> str:
    """The operator's image."""
    podman.build("operator", OPERATOR)
    return OPERATOR


@pytest.fixture(scope="session")
def engine_image(podman: Podman) -> str:
    """The engine's image: 5 GB of torch and CUDA, which the cache keeps."""
    podman.build("engine", ENGINE)
    return ENGINE
