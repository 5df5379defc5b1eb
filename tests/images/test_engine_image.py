"""The engine's image, whole: it starts, plans, and as one container serves chat and /stats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cluster.paths import REPOSITORY
from tests.images.facts import (
    code_megabytes,
    copy_of_the_sources,
    megabytes_above_base,
    num_new_layers,
    python_in,
)
from tests.images.podman import Podman
from tests.models.tiny import build_tiny

pytestmark = [pytest.mark.root, pytest.mark.engine_image]

# runs in the container beside the engine: no port of this machine is taken
_VISITOR = """
import json, time, urllib.request as web
def get(url):
    return web.urlopen(url, timeout=30).read().decode()
for _ in range(600):
    try:
        get("http://127.0.0.1:8000/ready")
        break
    except OSError:
        time.sleep(0.2)
body = json.dumps({"model": "/model", "prompt": "Hi", "max_tokens": 4}).encode()
kind = {"Content-Type": "application/json"}
asked = web.Request("http://127.0.0.1:8000/v1/completions", body, kind)
print(json.dumps({
    "page": get("http://127.0.0.1:8000/"),
    "stats": json.loads(get("http://127.0.0.1:3001/stats")),
    "answer": json.loads(web.urlopen(asked, timeout=120).read()),
}))
"""


@pytest.fixture(scope="module", autouse=True)
def size_told(request: pytest.FixtureRequest, podman: Podman, engine_image: str) -> None:
    """Say how large it is: whoever ships it wants to know."""
    size = podman.inspect(engine_image)["Size"] / 1e9
    above = megabytes_above_base(podman, engine_image) / 1e3
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    reporter.write_line(f"\nengine image: {size:.2f} GB, {above:.2f} GB above its base")


def test_it_says_how_it_is_used_and_plans_without_a_gpu(podman: Podman, engine_image: str) -> None:
    run = ("run", "--rm", "--network=none", "--read-only", engine_image)
    assert "serve MODEL" in podman.run(*run, "--help")
    plan = podman.run(*run, "plan", "Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4", "-o", "json")
    assert json.loads(plan)["blocks"]["total"] > 0


def test_it_runs_as_nobody_in_particular_and_lists_what_it_holds(
    podman: Podman, engine_image: str
) -> None:
    config = podman.inspect(engine_image)["Config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/code/bin/qwen-engine"]
    text = python_in(podman, engine_image, "print(open('/opt/code/sbom.cdx.json').read())")
    listed = {c["name"].lower() for c in json.loads(text)["components"]}
    assert {"torch", "transformers", "qwen-engine"} <= listed
    assert {"pytest", "uv", "pip"}.isdisjoint(listed)


def test_its_kernels_are_compiled_in(podman: Podman, engine_image: str) -> None:
    program = "from qwen_engine.kernels.library import NativeLibrary as n; print(n.find().kernels)"
    assert "fma" in python_in(podman, engine_image, program)


def test_one_container_serves_chat_and_stats_for_a_model_that_is_only_named(
    podman: Podman, engine_image: str
) -> None:
    model = build_tiny("qwen3-tied")
    started = podman.run(
        *("run", "--detach", "--network=none", "--read-only", "--tmpfs=/tmp:exec,mode=1777"),
        *("--volume", f"{model}:/model:ro", engine_image, "/model"),
    ).strip()
    try:
        said = podman.run("exec", started, "/opt/venv/bin/python3", "-c", _VISITOR, seconds=300)
        found = json.loads(said)
    finally:
        podman.run("rm", "--force", "--time=5", started)
    assert "<html" in found["page"]
    assert found["stats"]["num_total_gpu_blocks"] > 0
    assert found["answer"]["usage"]["completion_tokens"] >= 1


def test_a_change_of_code_sends_less_than_5_mb(
    podman: Podman, engine_image: str, tmp_path: Path
) -> None:
    changed = copy_of_the_sources(tmp_path / "changed")
    with (changed / "engine" / "qwen_engine" / "cli.py").open("a") as file:
        file.write(f"\n# {tmp_path}\n")
    tag = "localhost/qwen-engine:changed"
    podman.build("engine", tag, context=changed)
    try:
        assert num_new_layers(podman, engine_image, tag) == 2  # our code, and its bill
        assert code_megabytes(podman, tag) < 5
    finally:
        podman.run("rmi", tag)


def test_its_version_is_the_charts() -> None:
    chart = yaml.safe_load(
        (REPOSITORY / "charts" / "qwen-operator" / "Chart.yaml").read_text("utf-8")
    )
    text = (REPOSITORY / "docker" / "engine.Dockerfile").read_text("utf-8")
    assert f"ARG VERSION={chart['appVersion']}" in text
