"""Set-up of a fresh clone: pins are complete, pip's settings reach uv, what is missing is named."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cluster.paths import REPOSITORY
from tests.setup import chainlit, venv
from tests.setup.debian import Need, ensure_packages
from tests.setup.steps import SetupError, run_logged

_OWN = {"qwen-engine", "qwen-operator"}


def _wanted() -> list[Requirement]:
    lines = (REPOSITORY / "requirements-dev.txt").read_text().splitlines()
    found = [line.split("#")[0].strip() for line in lines]
    for name in ("engine", "operator"):
        project = tomllib.loads((REPOSITORY / name / "pyproject.toml").read_text())["project"]
        found += project["dependencies"]
        for extra in project.get("optional-dependencies", {}).values():
            found += extra
    return [Requirement(line) for line in found if line]


def _pinned() -> dict[str, list[str]]:
    pins: dict[str, list[str]] = {}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line):
            pins.setdefault(_normal(match[1]), []).append(match[2])
    return pins


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_requirement_to_a_version_it_allows() -> None:
    pinned = _pinned()
    wanted = [r for r in _wanted() if _normal(r.name) not in _OWN]
    assert len(wanted) > 10
    for requirement in wanted:
        versions = pinned.get(_normal(requirement.name), [])
        assert versions, f"{requirement.name} is in no line of constraints.txt: make constraints"
        assert all(requirement.specifier.contains(v, prereleases=True) for v in versions)


def test_pips_settings_become_uvs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("PIP_CERT", "/etc/own-ca.pem")
    settings = venv.uv_environment()
    assert settings["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert settings["SSL_CERT_FILE"] == "/etc/own-ca.pem"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uvs-own.example/simple")
    assert venv.uv_environment()["UV_DEFAULT_INDEX"] == "https://uvs-own.example/simple"


def test_what_a_user_cannot_install_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get" if "apt" in name else None)
    needs = [Need("no-such-package", ("no-such-program",)), Need("bash", ("/bin/sh",))]
    ensure_packages(needs, without="that much is lost")
    said = capsys.readouterr().out
    assert "apt-get install no-such-package" in said
    assert "that much is lost" in said
    assert "bash" not in said


def test_a_failed_command_shows_the_end_of_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QWEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(SetupError, match="no route to the index"):
        run_logged(["sh", "-c", "echo no route to the index; exit 3"], log="x.log")


def test_chainlit_is_set_up_once_and_where_it_cannot_be_had_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("QWEN_CACHE_DIR", str(tmp_path))
    made: list[Path] = []

    def make(target: Path, requirements: tuple[str, ...]) -> None:
        made.append(target)
        if len(made) == 1:
            raise SetupError("no route to the index")
        target.mkdir(parents=True)

    monkeypatch.setattr(chainlit, "make_venv_of_its_own", make)
    chainlit.ensure_chainlit()
    assert "missing: Chainlit; its test will be skipped: no route" in capsys.readouterr().out
    chainlit.ensure_chainlit()
    chainlit.ensure_chainlit()
    assert made == [chainlit.chainlit_program().parents[1]] * 2


def test_make_without_a_target_lists_every_documented_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for target in ("demo", "demo-stop", "install", "lint", "test", "test-e2e", "ci", "clean"):
        assert re.search(rf"^  {target} +\S", listed, re.MULTILINE), target
