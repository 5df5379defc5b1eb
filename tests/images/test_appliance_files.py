"""compose.yaml and the systemd unit: what they say fits the image and the engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_engine.cli import STATS_PORT
from tests.cluster.paths import REPOSITORY

DOCKER = REPOSITORY / "docker"
# https://github.com/compose-spec/compose-spec/blob/main/05-services.md: those that are used
_KNOWN = {
    "image", "command", "ports", "environment", "volumes", "read_only", "tmpfs", "cap_drop",
    "security_opt", "healthcheck", "deploy", "stop_grace_period", "restart",
}  # fmt: skip


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return found


def dockerfile() -> str:
    return (DOCKER / "engine.Dockerfile").read_text("utf-8")


def test_compose_serves_the_api_with_its_chat_page_and_the_stats_port() -> None:
    [service] = compose()["services"].values()
    assert set(service) <= _KNOWN
    ports = [word.partition(":")[2] for word in service["ports"]]
    assert ports == ["8000", str(STATS_PORT)]
    assert set(ports) <= set(re.findall(r"\d+", re.search(r"EXPOSE (.*)", dockerfile())[1]))  # type: ignore[index]
    [gpu] = service["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_compose_keeps_models_and_can_write_nowhere_else_but_tmp() -> None:
    [service] = compose()["services"].values()
    [mount] = service["volumes"]
    volume, _, place = mount.partition(":")
    assert volume in compose()["volumes"]
    assert f"VOLUME {place}\n" in dockerfile()
    assert service["read_only"] is True
    [scratch] = service["tmpfs"]
    path, _, options = scratch.partition(":")
    assert (path, "exec" in options.split(",")) == ("/tmp", True)  # docker's default is noexec


def test_the_health_check_is_a_program_that_is_in_the_image() -> None:
    [service] = compose()["services"].values()
    kind, program, flag, source = service["healthcheck"]["test"]
    assert (kind, flag) == ("CMD", "-c")  # no shell
    assert f"venv --without-pip {program.removesuffix('/bin/python3')}" in dockerfile()
    compile(source, "healthcheck", "exec")
    assert "/ready" in source


def test_docker_compose_takes_it_where_there_is_one() -> None:
    programs = [["docker", "compose"], ["podman-compose"], ["docker-compose"]]
    here = [p for p in programs if shutil.which(p[0]) and _works([*p, "version"])]
    if not here:
        pytest.skip("no compose program here: its keys are checked above")
    command = [*here[0], "-f", str(DOCKER / "compose.yaml"), "config"]
    subprocess.run(command, check=True, capture_output=True)


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    text = (DOCKER / "qwen-engine.service").read_text("utf-8")
    program = "/opt/qwen-engine/bin/qwen-engine"
    assert text.count(f"ExecStart={program} serve ${{MODEL}}") == 1
    unit = tmp_path / "qwen-engine.service"
    unit.write_text(text.replace(program, sys.executable))  # it must exist to be verified
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    about_ours = [line for line in result.stderr.splitlines() if "qwen-engine" in line]
    assert about_ours == []
    assert result.returncode == 0, result.stderr


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
