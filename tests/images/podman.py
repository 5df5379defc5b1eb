"""podman with a storage of its own in the cache, and a base image that no registry need serve.

Called by the fixtures here. Layers stay in the cache from run to run, as on anybody's builder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.paths import REPOSITORY, cache_dir
from tests.cluster.processes import locked
from tests.setup.venv import uv_environment

BASE = "localhost/python-stand-in:bookworm"
_PACKAGES = "ca-certificates,python3,python3-venv"
_CONFIG = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
"""
_CERTIFICATES = "/etc/ssl/certs"
_UV_CACHE = "/var/cache/uv"


@dataclass(frozen=True, slots=True)
class Podman:
    """podman on one storage folder."""

    folder: Path

    def run(self, *args: str, seconds: float = 600, env: Mapping[str, str] | None = None) -> str:
        """Run `podman ARGS`; return what it printed. Raises AssertionError with its complaint."""
        config = self.folder / "containers.conf"
        config.write_text(_CONFIG)
        places = ("--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run"))
        result = subprocess.run(
            ["podman", *places, "--storage-driver", "overlay", *args],
            env={**os.environ, "CONTAINERS_CONF": str(config), **(env or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        said = f"podman {' '.join(args)}:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        assert result.returncode == 0, said
        return result.stdout

    def inspect(self, image: str) -> dict[str, Any]:
        """Return what is known of an image."""
        [found] = json.loads(self.run("image", "inspect", image))
        return dict(found)

    def build(self, name: str, tag: str, *, context: Path = REPOSITORY) -> None:
        """Build docker/NAME.Dockerfile as `tag`, with this machine's way to packages."""
        uv_cache = Path.home() / ".cache" / "uv"
        uv_cache.mkdir(parents=True, exist_ok=True)
        settings = uv_environment()
        bundle = settings.get("SSL_CERT_FILE", f"{_CERTIFICATES}/ca-certificates.crt")
        index = settings.get("UV_DEFAULT_INDEX", "https://pypi.org/simple")
        pip, uv = self.folder / "pip.conf", self.folder / "uv.toml"
        pip.write_text(f"[global]\ncert = {bundle}\nindex-url = {index}\n")
        uv.write_text(f'native-tls = true\n[[index]]\nurl = "{index}"\ndefault = true\n')
        mounts = (
            f"{_CERTIFICATES}:{_CERTIFICATES}:ro",
            f"{pip}:/etc/pip.conf:ro",
            f"{uv}:/etc/uv/uv.toml:ro",
            f"{uv_cache}:{_UV_CACHE}",
        )
        self.run(
            *("build", "--pull=never", "--network=host", "--layers"),
            *(word for mount in mounts for word in ("--volume", mount)),
            *("--build-arg", f"BASE={BASE}", "--build-arg", f"CACHE=--cache-dir={_UV_CACHE}"),
            *("--file", str(context / "docker" / f"{name}.Dockerfile"), "--tag", tag),
            str(context),
            seconds=900,
        )

    def ensure_base(self) -> None:
        """Make the image that stands in for python:3-slim, once per cache (a minute)."""
        with locked(self.folder / "base.lock"):
            if BASE in self.run("images", "--format", "{{.Repository}}:{{.Tag}}"):
                return
            with tempfile.TemporaryDirectory(prefix="base-") as scratch:
                root, archive = Path(scratch, "root"), Path(scratch, "root.tar")
                argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}"]
                subprocess.run(
                    [*argv, "bookworm", str(root), _mirror()], check=True, capture_output=True
                )
                shutil.rmtree(root / "var" / "cache" / "apt")
                subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
                self.run("import", str(archive), BASE)


def here() -> Podman:
    """Return podman on the cache's storage."""
    folder = cache_dir() / "podman"
    folder.mkdir(parents=True, exist_ok=True)
    return Podman(folder)


def _mirror() -> str:
    """Return the archive that this machine's apt uses for bookworm; Debian's own elsewhere."""
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    pairs = [line.split() for line in told.stdout.splitlines()]
    found = [pair[0] for pair in pairs if len(pair) == 2 and pair[1] in ("bookworm", "oldstable")]
    return found[0] if found else "http://deb.debian.org/debian"
