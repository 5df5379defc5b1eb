"""Container images without a builder or a registry: OCI archives written by `tarfile`.

Called when a node starts. The images hold next to nothing: the host's /usr, the Python, the
virtual environment and this repository are mounted into every container (runtime.py), so a
change to the source is in the cluster without building anything.
"""

import hashlib
import io
import json
import platform
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ENGINE_IMAGE = "localhost/qwen-engine:dev"
OPERATOR_IMAGE = "localhost/qwen-operator:dev"
PAUSE_IMAGE = "localhost/pause:dev"

CONTAINER_ROOT = Path("/opt/qwen")
CONTAINER_REPOSITORY = CONTAINER_ROOT / "repository"
CONTAINER_VENV = CONTAINER_ROOT / "venv"
_USER_ID = 65532  # the user "nonroot" of the shipped images

_OCI = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """What is in one image: files (content, executable), symbolic links, and its configuration."""

    name: str
    config: Mapping[str, object]
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def layer(self) -> bytes:
        """Return the image's only layer as a tar archive, the same bytes every time."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for folder in self.folders:
                _add(tar, f"{folder}/", mode=0o1777 if folder == "tmp" else 0o755)
            for name, target in self.links.items():
                _add(tar, name, link=target)
            for name, (content, mode) in self.files.items():
                _add(tar, name, content, mode=mode)
        return buffer.getvalue()


def pause_image(binary: Path) -> Image:
    """Return the image of a pod's first process."""
    return Image(
        PAUSE_IMAGE, {"Entrypoint": ["/pause"]}, files={"pause": (binary.read_bytes(), 0o755)}
    )


def python_image(name: str, *, command: str, module: str) -> Image:
    """Return an image whose entry point is `command`, the console script of `module`."""
    script = f"#!{CONTAINER_VENV}/bin/python\nfrom {module} import main\nraise SystemExit(main())\n"
    home = Path(sys.base_prefix).resolve() / "bin"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    accounts = f"root:x:0:0::/root:/bin/sh\nnonroot:x:{_USER_ID}:{_USER_ID}::/tmp:/bin/sh\n"
    venv = CONTAINER_VENV.relative_to("/")
    return Image(
        name,
        {
            "Entrypoint": [command],
            "User": f"{_USER_ID}:{_USER_ID}",
            "WorkingDir": "/tmp",
            "Env": [
                f"PATH={CONTAINER_VENV}/bin:/usr/bin:/bin",
                f"PYTHONPATH={CONTAINER_REPOSITORY}/engine:{CONTAINER_REPOSITORY}/operator",
                "PYTHONUNBUFFERED=1",
                "HOME=/tmp",
            ],
        },
        files={
            "etc/passwd": (accounts.encode(), 0o644),
            "etc/group": (f"root:x:0:\nnonroot:x:{_USER_ID}:\n".encode(), 0o644),
            # what makes a folder a virtual environment (PEP 405); its packages are mounted
            f"{venv}/pyvenv.cfg": (f"home = {home}\nversion = {version}\n".encode(), 0o644),
            f"{venv}/bin/{command}": (script.encode(), 0o755),
        },
        links={
            **{name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")},
            f"{venv}/bin/python": f"{home}/python{version}",
        },
        folders=("usr", "etc", "tmp", "root", "proc", "sys", "dev", "var", "run"),
    )


def write_archive(target: Path, images: list[Image]) -> None:
    """Write images as one OCI archive that `ctr images import` takes."""
    blobs: dict[str, bytes] = {}
    manifests = [_add_blobs(blobs, image) for image in images]
    index = {"schemaVersion": 2, "manifests": manifests}
    with tarfile.open(target, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", content)


def _add_blobs(blobs: dict[str, bytes], image: Image) -> dict[str, object]:
    """Add an image's layer, configuration and manifest; return its entry for the index."""

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    layer = blob(image.layer(), f"{_OCI}.layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": image.config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{_OCI}.config.v1+json"),
        "layers": [layer],
    }
    entry = blob(json.dumps(manifest).encode(), f"{_OCI}.manifest.v1+json")
    return {**entry, "annotations": {"io.containerd.image.name": image.name}}


def _add(
    tar: tarfile.TarFile, name: str, content: bytes = b"", *, mode: int = 0o644, link: str = ""
) -> None:
    """Add a file, a symbolic link if `link` is given, or a folder if the name ends with a slash."""
    info = tarfile.TarInfo(name.rstrip("/"))
    info.mode, info.linkname, info.size = mode, link, len(content)
    if name.endswith("/"):
        info.type = tarfile.DIRTYPE
    elif link:
        info.type = tarfile.SYMTYPE
    tar.addfile(info, io.BytesIO(content))
