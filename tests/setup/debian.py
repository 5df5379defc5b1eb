"""Programs that come from Debian or Ubuntu packages: installed for root, named for others.

Called by __main__. Installs only what is missing, so a machine with Docker's own containerd
keeps it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.paths import cache_dir
from tests.setup.steps import SetupError, run_logged, step

_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_APT_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive"}


@dataclass(frozen=True, slots=True)
class Need:
    """A package, and the programs or files any one of which shows that it need not be had."""

    package: str
    shown_by: tuple[str, ...]

    def is_met(self) -> bool:
        """Say whether one of the programs is there."""
        return any(_is_there(name) for name in self.shown_by)


NODE = (
    Need("containerd", ("containerd",)),
    Need("runc", ("runc",)),
    Need("containernetworking-plugins", ("/usr/lib/cni/bridge", "/opt/cni/bin/bridge")),
    Need("iptables", ("iptables",)),
    Need("iproute2", ("ip",)),
)
IMAGES = (Need("podman", ("podman",)), Need("debootstrap", ("debootstrap",)))
BROWSER = (Need("chromium", ("chromium", "chromium-browser", "google-chrome")),)


def _is_there(name: str) -> bool:
    if name.startswith("/"):
        return Path(name).exists()
    return bool(shutil.which(name)) or any(Path(f, name).exists() for f in _SYSTEM_FOLDERS)


def ensure_packages(needs: Sequence[Need], *, without: str) -> None:
    """Install the packages that are missing; where that can't be, say what is lost: `without`."""
    missing = [need.package for need in needs if not need.is_met()]
    if not missing:
        return
    command = f"apt-get install {' '.join(missing)}"
    if shutil.which("apt-get") is None:
        print(f"• missing: {', '.join(missing)} (no apt-get here: use your packages); {without}")
    elif os.geteuid() != 0:
        print(f"• missing: {', '.join(missing)} (not root); {without}. As root: {command}")
    else:
        apt_install(missing)


def unpack_programs(package: str, *programs: str) -> None:
    """Put programs of a package into the cache; where that can't be, say what is lost.

    Installing the package would also start the services that it brings.
    """
    if all(find_program(package, program) for program in programs):
        return
    target, listed = cache_dir() / package, ", ".join(programs)
    wanted = " ".join(f"./usr/bin/{program}" for program in programs)
    extract = f"dpkg-deb --fsys-tarfile {package}_*.deb | tar -x {wanted}"
    steps = [f"cd '{target}'", f"apt-get download {package}", extract, f"rm {package}_*.deb"]
    if os.geteuid() == 0:
        steps.insert(0, "apt-get update")
    try:
        with step(f"{listed}, out of Debian's package {package}"):
            target.mkdir(parents=True, exist_ok=True)
            run_logged(["sh", "-c", " && ".join(steps)], log=f"{package}.log")
    except SetupError:
        print(f"• missing: {listed}; tests with it will be skipped")


def find_program(package: str, program: str) -> Path | None:
    """Return a program of a package: installed, or from where `unpack_programs` puts it."""
    if found := shutil.which(program):
        return Path(found)
    unpacked = cache_dir() / package / "usr" / "bin" / program
    return unpacked if unpacked.exists() else None


def apt_install(packages: Sequence[str]) -> None:
    """Install packages as root. Raises SetupError."""
    with step(f"Debian packages: {' '.join(packages)}"):
        run_logged(["apt-get", "update"], log="apt-update.log", env=_APT_ENVIRONMENT)
        install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        run_logged(install, log="apt-install.log", env=_APT_ENVIRONMENT)


def candidate_version(package: str) -> tuple[int, int]:
    """Return the major and minor version that apt would install, (0, 0) if none."""
    if shutil.which("apt-cache") is None:
        return (0, 0)
    policy = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, check=False
    )
    match = re.search(r"Candidate: (?:\d+:)?(\d+)\.(\d+)", policy.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
