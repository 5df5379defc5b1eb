"""Finds a Go that can build the cluster's tools, or says how to get one.

Called by tools.py and by set-up. Go 1.21 and later fetch the exact toolchain that a go.mod asks for
(https://go.dev/doc/toolchain), so any of those will do.
"""

import re
import shutil
import subprocess
from pathlib import Path

from tests.cluster.processes import ClusterError

OLDEST_GO = (1, 21)
_USUAL_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")


def find_go(go_mod: Path) -> Path:
    """Return a `go` that can build `go_mod`. Raises ClusterError that says how to get one."""
    found = [shutil.which("go"), *_USUAL_PLACES]
    versions = {Path(go): _version(go) for go in found if go and Path(go).exists()}
    for go, version in versions.items():
        if version >= OLDEST_GO:
            return go
    raise ClusterError(_how_to_get(go_mod, versions))


def _version(go: str) -> tuple[int, int]:
    # outside a module, and told to stay itself: otherwise it may start a download
    result = subprocess.run(
        [go, "env", "GOVERSION"], cwd="/", capture_output=True, text=True, check=False
    )
    match = re.match(r"go(\d+)\.(\d+)", result.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _how_to_get(go_mod: Path, versions: dict[Path, tuple[int, int]]) -> str:
    wanted = re.search(r"^go (\S+)", go_mod.read_text(), re.MULTILINE)
    there = ", ".join(f"{go} is {major}.{minor}" for go, (major, minor) in versions.items())
    return (
        f"Go is missing ({there or 'no go found'}; 1.21 or newer is needed, "
        f"{wanted[1] if wanted else ''} best).\n"
        "Unpack https://go.dev/dl/ to /usr/local/go; on Debian 13, Ubuntu 24.04 or newer also: "
        "apt-get install golang-go"
    )
