"""Models by folder or hub id, against a stand-in for the hub on loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen_engine.errors import ModelNotFoundError
from qwen_engine.hub import ModelSource, fetch_config, resolve_model
from tests.models.tiny import build_tiny
from tests.unit.hub_server import COMMIT, TOKEN, HubServer, files_of

MODEL = "org/tiny"
LARGE = bytes(range(256)) * 80_000  # 20 MB


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    files = files_of(build_tiny("qwen3-tied"))
    unwanted = {
        "pytorch_model.bin": b"x" * 10**6, "README.md": b"", "original/model.safetensors": b"x",
        "consolidated.safetensors": b"x" * 1000,
    }  # fmt: skip
    repos = {name: {**files, **unwanted} for name in (MODEL, "org/private")}
    repos["org/pickled"] = {"config.json": files["config.json"], "pytorch_model.bin": b"x"}
    repos["org/large"] = {"config.json": b"{}", "large.safetensors": LARGE}
    server = HubServer(repos)
    yield server
    server.close()


def source(hub: HubServer, tmp_path: Path, revision: str | None = None) -> ModelSource:
    return ModelSource(revision=revision, download_dir=tmp_path / "cache", endpoint=hub.address)


def refused(model: str, where: ModelSource) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(model, where)
    return str(caught.value)


def test_a_model_is_downloaded_with_what_the_engine_reads_and_nothing_else(
    hub: HubServer, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    where = source(hub, tmp_path)
    folder = resolve_model(MODEL, where, on_progress=lambda *bytes_: seen.append(bytes_))
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"pytorch_model.bin", "README.md", "original", "consolidated.safetensors"}
    assert folder.name == COMMIT
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_cached_model_is_not_downloaded_again(hub: HubServer, tmp_path: Path) -> None:
    first = resolve_model(MODEL, source(hub, tmp_path))
    sent = hub.sent["model.safetensors"]
    assert resolve_model(MODEL, source(hub, tmp_path)) == first
    assert hub.sent["model.safetensors"] == sent


def test_a_broken_download_goes_on_where_it_broke(hub: HubServer, tmp_path: Path) -> None:
    hub.break_after["large.safetensors"] = broken = 15 * 10**6
    folder = resolve_model("org/large", source(hub, tmp_path))
    assert (folder / "large.safetensors").read_bytes() == LARGE
    # huggingface_hub keeps whole pieces of 10 MiB.
    assert hub.sent["large.safetensors"] == broken + len(LARGE) - 10 * 2**20


def test_a_cached_model_is_served_when_the_hub_is_gone(tmp_path: Path) -> None:
    server = HubServer({MODEL: files_of(build_tiny("qwen3-tied"))})
    where = source(server, tmp_path)
    folder = resolve_model(MODEL, where)
    server.close()
    assert resolve_model(MODEL, where) == folder


def test_a_token_opens_a_private_model(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert "HF_TOKEN" in refused("org/private", source(hub, tmp_path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve_model("org/private", source(hub, tmp_path)).is_dir()


@pytest.mark.parametrize(
    ("model", "revision", "said"),
    [
        ("org/unheard-of", None, "no such model"),
        ("org/hidden", None, "HF_TOKEN"),
        ("org/gated", None, "accept its terms"),
        ("org/broken", None, "answered 503"),
        (MODEL, "no-such-branch", "no revision 'no-such-branch'"),
        ("org/pickled", None, "no *.safetensors in it"),
        ("a/b/c", None, "no such folder"),
        ("not a name!", None, "neither a folder nor a hub id"),
    ],
)
def test_what_cannot_be_had_is_said_with_a_way_out(
    hub: HubServer, tmp_path: Path, model: str, revision: str | None, said: str
) -> None:
    message = refused(model, source(hub, tmp_path, revision))
    assert said in message
    assert "Traceback" not in message
    assert "\n" not in message


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    where = ModelSource(download_dir=tmp_path, endpoint="http://127.0.0.1:1")
    message = refused(MODEL, where)
    assert "http://127.0.0.1:1 cannot be reached" in message
    assert "HF_ENDPOINT" in message


def test_folders_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    where = ModelSource()
    assert "no such folder" in refused(str(tmp_path / "nowhere"), where)
    assert "no config.json in it" in refused(str(tmp_path), where)
    (tmp_path / "config.json").write_text("{}")
    assert "no *.safetensors in it" in refused(str(tmp_path), where)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve_model(str(tmp_path), where) == tmp_path
    assert "is a file" in refused(str(tmp_path / "config.json"), where)


def test_environment_variables_work_as_they_do_for_the_hubs_own_tools(
    hub: HubServer, tmp_path: Path
) -> None:
    """In a process of its own: huggingface_hub reads them when it is imported."""

    def resolve(**more: str) -> subprocess.CompletedProcess[str]:
        script = (
            "from qwen_engine.hub import *\n"
            "from qwen_engine.errors import ModelNotFoundError\n"
            f"try: print(resolve_model({MODEL!r}, ModelSource()))\n"
            "except ModelNotFoundError as error: print(error)\n"
        )
        env = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), **more}
        return subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )

    assert "HF_HUB_OFFLINE is set" in resolve(HF_HUB_OFFLINE="1").stdout
    folder = resolve().stdout.strip()
    assert folder.startswith(str(tmp_path))
    assert resolve(HF_HUB_OFFLINE="1").stdout.strip() == folder


def test_a_config_is_read_without_the_weights(hub: HubServer, tmp_path: Path) -> None:
    found = fetch_config("org/large", source(hub, tmp_path))
    assert found == {}
    assert fetch_config(MODEL, source(hub, tmp_path))["architectures"] == ["Qwen3ForCausalLM"]
    assert not list(tmp_path.rglob("*.safetensors"))
    nobody = ModelSource(download_dir=tmp_path / "cache", endpoint="http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        fetch_config("org/unheard-of", nobody)
