"""What must be set in a process before torch is imported, and how to import it fast.

Called by who imports torch first: `qwen-engine` and the Python API. What the user has set stays.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A step has hundreds of parallel regions. Where threads sleep at the end of each, waking them takes
# as long as a small region; where they spin until the slowest is there, as OpenMP does by default,
# and another process holds a core (a busy node, a CPU quota), that takes a scheduler's slice each
# time: on two cores shared with two busy processes SmolLM2 decoded 1.3 tokens/s spinning without
# bound and 14 to 20 sleeping. So they spin for some tens of microseconds, then sleep: on cores
# shared with ten busy processes a token of Qwen3-0.6B took 0.28 s sleeping, 0.32 with 2,000 spins,
# 0.55 with 20,000.
_SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"}


def prepare() -> None:
    """Set what the user has not."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


def start_to_load_torch() -> None:
    """Have a thread map torch's libraries while the interpreter imports other things.

    A fifth of the import of torch is the system's linker at work on a gigabyte of them. After
    `prepare`: OpenMP reads its settings when it is loaded.
    """
    threading.Thread(target=_load_torch, name="torch", daemon=True).start()


def _load_torch() -> None:
    spec = importlib.util.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        libraries = Path(folder) / "lib"
        with suppress(OSError):  # laid out otherwise: the import will do it
            # In torch's own order (torch/__init__.py, _load_global_deps).
            ctypes.CDLL(str(libraries / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(libraries / "libtorch.so"))


@contextmanager
def importing() -> Iterator[None]:
    """Keep the garbage collector out of large imports, and from then on off what they made.

    Modules live for ever: 470 collections during the import of torch took a tenth of it, and a
    full collection that walks them stops a server for some 50 ms.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
