"""Fixtures that several layers share: a real API server, simulated nodes, a whole cluster.

Clusters live for the session and end with it, even when pytest is killed. Tests ask for the least
that they need: `control_plane` starts in seconds without root, `cluster` runs real pods.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from hypothesis import settings

# Before torch is imported: on cores shared with others, threads that spin at the end of each
# parallel region make the engine's own tests several times slower (qwen_engine/environment.py).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tests.cluster import kwok, launch, tools
from tests.cluster.client import Cluster
from tests.cluster.paths import RunDirectory

# Cores are shared with others, so an example's time says nothing of the code.
settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")

Shown = Callable[[], AbstractContextManager[None]]


def _tools_ready(names: tuple[str, ...], shown: Shown) -> None:
    """Build what is missing where its progress can be seen: it takes minutes the first time."""
    if not all(tools.TOOL_SETS[name].bin.is_dir() for name in names):
        with shown():
            for name in names:
                tools.ensure(name)


@pytest.fixture(scope="session")
def _progress_shown(request: pytest.FixtureRequest) -> Shown:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    shown: Shown = capture.global_and_fixture_disabled
    return shown


@pytest.fixture(scope="session")
def control_plane(
    tmp_path_factory: pytest.TempPathFactory, _progress_shown: Shown
) -> Iterator[Cluster]:
    """An API server with etcd, controllers and scheduler; no node. Ready in seconds, no root."""
    _tools_ready(("etcd", "kubernetes"), _progress_shown)
    with launch.running(RunDirectory(tmp_path_factory.mktemp("control-plane")), node=False) as it:
        yield it


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, _progress_shown: Shown) -> Iterator[Cluster]:
    """A whole one-node cluster whose pods really run, reachable from here. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("a node needs root: run the tests of marker `root` as root")
    if missing := [name for name in ("containerd", "runc", "iptables") if not shutil.which(name)]:
        # on CI a skipped layer would look like a passed one
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end(f"{', '.join(missing)} missing: `make install` as root gets them")
    _tools_ready(("etcd", "kubernetes", "helm"), _progress_shown)
    with launch.running(RunDirectory(tmp_path_factory.mktemp("cluster")), node=True) as it:
        yield it


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace, named after the test; on `cluster` if the test uses it, else without."""
    where = "cluster" if "cluster" in request.fixturenames else "control_plane"
    there: Cluster = request.getfixturevalue(where)
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    name = f"{words[:40].strip('-')}-{uuid.uuid4().hex[:6]}"
    there.kubectl("create", "namespace", name)
    yield name
    there.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def _kwok(control_plane: Cluster, _progress_shown: Shown) -> Iterator[None]:
    _tools_ready(("kwok",), _progress_shown)
    with kwok.running(control_plane):
        yield


@pytest.fixture
def kwok_nodes(control_plane: Cluster, _kwok: None) -> Iterator[kwok.NodeFactory]:
    """A factory of simulated nodes: `kwok_nodes("a100-0", labels={...}, allocatable={...})`.

    Pods scheduled to them are Running and Ready at once, though nothing runs. The nodes go with
    the test.
    """
    factory = kwok.NodeFactory(control_plane)
    yield factory
    factory.delete_all()
