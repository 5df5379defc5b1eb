"""The clone's virtual environment: the versions of constraints.txt, installed by uv.

Called by __main__. uv links packages from its own cache, so a second clone takes seconds. Where uv
can't be had, pip does the same more slowly.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.paths import REPOSITORY, cache_dir
from tests.setup.debian import apt_install
from tests.setup.steps import SetupError, run_logged, step

VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin" / "python"
_STAMP = VENV / ".installed"
_PINS = (
    "constraints.txt",
    "requirements-dev.txt",
    "engine/pyproject.toml",
    "operator/pyproject.toml",
)
_WANTED = ["-c", "constraints.txt", "-r", "requirements-dev.txt"]
_WANTED += ["-e", "./engine[serve]", "-e", "./operator"]

# pip's settings → uv's: people have configured pip, and uv does not read that
_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}


def ensure_venv() -> None:
    """Make .venv what the pins say, unless it is that already. Raises SetupError."""
    if _STAMP.exists() and _STAMP.read_text() == _wanted_stamp():
        return
    os.chdir(REPOSITORY)
    uv = _find_uv()
    if not _is_same_python():
        with step(f"virtual environment .venv (Python {sys.version.split()[0]})"):
            _create(uv, VENV)
    with step("Python packages at the versions of constraints.txt (2-4 min when not cached)"):
        _install(uv, PYTHON, _WANTED)
    with step("compiling the Python modules that pods will import"):
        _compile_imported()
    _STAMP.write_text(_wanted_stamp())


def make_venv_of_its_own(target: Path, requirements: Sequence[str]) -> None:
    """Make an environment outside the clone, for what ours must not hold. Raises SetupError."""
    uv = _find_uv()
    _create(uv, target)
    _install(uv, target / "bin" / "python", requirements)


def _wanted_stamp() -> str:
    content = [(REPOSITORY / name).read_bytes() for name in _PINS]
    kernels = sorted((REPOSITORY / "engine/qwen_engine/kernels").iterdir())
    content += [path.read_bytes() for path in kernels if path.suffix in (".cpp", ".h")]
    content += [sys.version.encode(), str(REPOSITORY).encode()]
    return hashlib.sha256(b"\0".join(content)).hexdigest()


def _is_same_python() -> bool:
    if not PYTHON.exists():
        return False
    show = [str(PYTHON), "-c", "import sys; print(sys.version)"]
    result = subprocess.run(show, capture_output=True, text=True, check=False)
    return result.stdout.strip() == sys.version.strip()


def _find_uv() -> Path | None:
    """Return a uv that works: the user's, or one in a small environment of ours."""
    own = cache_dir() / "uv" / "bin" / "uv"
    for candidate in (shutil.which("uv"), str(own)):
        if candidate and _works([candidate, "--version"]):
            return Path(candidate)
    try:
        with step("uv, which installs Python packages"):
            _make_plain_venv(cache_dir() / "uv")
            pip = str(own.with_name("pip"))
            run_logged([pip, "install", "--quiet", "uv>=0.9,<1"], log="uv.log")
    except SetupError as error:
        print(f"• no uv, so pip it is: {error}", flush=True)
        return None
    return own


def _works(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _make_plain_venv(target: Path) -> None:
    if not _works([sys.executable, "-c", "import ensurepip"]):
        package = f"python3.{sys.version_info.minor}-venv"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise SetupError(f"{sys.executable} can't make virtual environments: install {package}")
        apt_install([package])
    run_logged([sys.executable, "-m", "venv", "--clear", str(target)], log="venv.log")


def _create(uv: Path | None, target: Path) -> None:
    if uv is None:
        _make_plain_venv(target)
    else:
        argv = [str(uv), "venv", "--seed", "--clear", "--python", sys.executable, str(target)]
        run_logged(argv, log="venv.log", env=uv_environment())


def _install(uv: Path | None, python: Path, wanted: Sequence[str]) -> None:
    if uv is None:
        run_logged([str(python), "-m", "pip", "install", *wanted], log="packages.log")
    else:
        argv = [str(uv), "pip", "install", "--python", str(python), *wanted]
        run_logged(argv, log="packages.log", env=uv_environment())


def uv_environment() -> dict[str, str]:
    """Return pip's settings, from its files and PIP_ variables, as uv's variables."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = re.findall(r"^\S*?\.([\w-]+)='(.*)'$", result.stdout, re.MULTILINE)
    found += [
        (name[4:].lower().replace("_", "-"), value)
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    ]
    settings = {_UV_NAMES[name]: value for name, value in found if name in _UV_NAMES}
    # the machine's certificates, as pip does
    return {"UV_SYSTEM_CERTS": "1", **settings, **_uv_settings_already_made()}


def _uv_settings_already_made() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _UV_NAMES.values()}


def _compile_imported() -> None:
    """Import once what the pods will: they can't write bytecode, and without it start slowly."""
    program = "\n".join(
        [
            "import importlib, pkgutil",
            "import qwen_engine, qwen_operator, transformers",
            "transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast",
            "for package in (qwen_engine, qwen_operator):",
            "    prefix = package.__name__ + '.'",
            "    for module in pkgutil.walk_packages(package.__path__, prefix):",
            # Not Python: kernels/library.py loads it by ctypes.
            "        if not module.name.endswith('.__main__') and '._native_' not in module.name:",
            "            importlib.import_module(module.name)",
        ]
    )
    # Where the caller's environment forbids bytecode, importing would leave none.
    writing = {"PYTHONDONTWRITEBYTECODE": ""}
    run_logged([str(PYTHON), "-c", program], log="imports.log", env=writing)
