"""The parts of the cluster that are only numbers, bytes and files."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster import tools
from tests.cluster.credentials import service_account_key, write_kubeconfig
from tests.cluster.dns import addresses_of, build_answer, parse_question
from tests.cluster.go_toolchain import find_go
from tests.cluster.images import ENGINE_IMAGE, python_image, write_archive
from tests.cluster.paths import REPOSITORY
from tests.cluster.polling import until
from tests.cluster.processes import (
    RUN_MARK,
    ClusterError,
    is_locked,
    kill_marked,
    marked_pids,
    try_lock,
)
from tests.cluster.subnets import SLOTS, Slot


def _query(name: str, *, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return (
        struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    )


class _Api:
    """Answers of an API server, by path."""

    def __init__(self, **objects: object) -> None:
        self._objects = objects

    def get(self, path: str) -> bytes | None:
        found = self._objects.get(path.rpartition("/")[2])
        return None if found is None else json.dumps(found).encode()


def test_every_slot_has_addresses_and_names_of_its_own() -> None:
    slots = [Slot(number) for number in range(SLOTS)]
    for field in ("pod_cidr", "link_cidr", "service_cidr", "node_address", "interface", "cgroup"):
        assert len({getattr(slot, field) for slot in slots}) == SLOTS
    assert Slot(63).service_cidr == "198.18.254.0/24"
    assert max(len(slot.interface) for slot in slots) <= 15  # the kernel's limit


def test_dns_answers_a_service_by_its_full_name() -> None:
    packet = _query("Web.shop.svc.cluster.local")
    question = parse_question(packet)
    api = _Api(web={"spec": {"clusterIP": "198.18.2.9"}})
    found = addresses_of(question.labels, api)  # type: ignore[arg-type]
    assert found == ["198.18.2.9"]
    answer = build_answer(packet, question, found)
    assert answer[:2] == packet[:2]
    assert struct.unpack_from("!HHH", answer, 2) == (0x8500, 1, 1)
    assert answer.endswith(bytes([198, 18, 2, 9]))


@pytest.mark.parametrize("name", ["example.com", "none.shop.svc.cluster.local", "web.shop.svc"])
def test_dns_knows_no_other_names(name: str) -> None:
    packet = _query(name)
    question = parse_question(packet)
    answer = build_answer(packet, question, addresses_of(question.labels, _Api()))  # type: ignore[arg-type]
    assert struct.unpack_from("!HHH", answer, 2) == (0x8503, 1, 0)


def test_dns_has_no_ipv6_addresses_but_says_that_the_name_exists() -> None:
    packet = _query("web.shop.svc.cluster.local", kind=28)
    answer = build_answer(packet, parse_question(packet), ["198.18.2.9"])
    assert struct.unpack_from("!HHH", answer, 2) == (0x8500, 1, 0)


@given(st.binary(max_size=64))
def test_dns_survives_any_packet(packet: bytes) -> None:
    try:
        question = parse_question(packet)
    except (IndexError, struct.error):
        return
    assert len(build_answer(packet, question, None)) >= 12


def test_an_image_archive_names_what_it_holds_and_is_the_same_every_time(tmp_path: Path) -> None:
    image = python_image(ENGINE_IMAGE, command="qwen-engine", module="qwen_engine.__main__")
    for name in ("first.tar", "second.tar"):
        write_archive(tmp_path / name, [image])
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    with tarfile.open(tmp_path / "first.tar") as archive:
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
    names = [m["annotations"]["io.containerd.image.name"] for m in index["manifests"]]
    assert names == [ENGINE_IMAGE]
    with tarfile.open(fileobj=io.BytesIO(image.layer())) as layer:
        assert layer.getmember("tmp").mode == 0o1777
        assert layer.getmember("opt/qwen/venv/bin/qwen-engine").mode == 0o755


def test_credentials_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("certificate")
    config = tmp_path / "kubeconfig"
    write_kubeconfig(config, server="https://127.0.0.1:1", token="t", authority=authority)
    assert config.stat().st_mode & 0o077 == 0
    assert json.loads(config.read_text())["users"][0]["user"] == {"token": "t"}
    keys = {service_account_key() for _ in range(3)}
    assert len(keys) == 3


def test_a_lock_lasts_as_long_as_any_process_holds_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = try_lock(path)
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as heir:
        os.close(lock)
        assert is_locked(path)
        heir.kill()
    assert not is_locked(path)


def test_a_cluster_ends_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from tests.cluster import launch\n"
        "from tests.cluster.paths import RunDirectory\n"
        "with launch.running(RunDirectory(Path(sys.argv[1])), node=False):\n"
        "    print('up', flush=True)\n"
        "    signal.pause()\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        assert list(marked_pids(tmp_path))
        run.send_signal(signal.SIGKILL)
    until(lambda: not is_locked(tmp_path / "lock"), what="the cluster's end", within_seconds=20)
    assert not list(marked_pids(tmp_path))


def test_only_processes_of_the_same_cluster_are_killed(tmp_path: Path) -> None:
    def sleeper(name: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, RUN_MARK: str(tmp_path / name)}
        return subprocess.Popen(["sleep", "60"], env=environment)

    with sleeper("one") as one, sleeper("one-more") as other:
        assert kill_marked(tmp_path / "one") == [one.pid]
        assert one.wait() == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


def test_tools_are_rebuilt_when_a_pin_changes_and_only_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubernetes = tools.TOOL_SETS["kubernetes"]
    before = kubernetes.bin
    assert kubernetes.bin == before
    (tmp_path / "kubernetes").mkdir()
    for file in kubernetes.module.iterdir():
        (tmp_path / "kubernetes" / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(tools, "_GOTOOLS", tmp_path)
    assert kubernetes.bin == before
    (tmp_path / "kubernetes" / "go.sum").write_text("other")
    assert kubernetes.bin != before


def test_a_missing_go_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.cluster.go_toolchain._USUAL_PLACES", ())
    with pytest.raises(ClusterError, match=r"Go is missing .*1\.21 or newer[^$]*go\.dev/dl"):
        find_go(tools.TOOL_SETS["kubernetes"].module / "go.mod")
