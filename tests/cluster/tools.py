"""Builds the cluster's programs from Go modules pinned in gotools/, once per pin.

`python -m tests.cluster.tools [kubernetes etcd helm kwok keda epp]` builds them ahead of time. What
is built lies in <cache>/bin/<name>-<hash of its files and flags>/ and is never touched again.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.go_toolchain import find_go
from tests.cluster.paths import cache_dir
from tests.cluster.processes import ClusterError, locked

_GOTOOLS = Path(__file__).parent / "gotools"
_PROGRESS_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ToolSet:
    """One Go module of tools: every `tool` line of its go.mod becomes a program."""

    name: str
    takes: str  # how long a first build takes on two cores, for people who wait
    variables: Mapping[str, str] = field(default_factory=dict)  # -X: what the linker sets
    renames: Mapping[str, str] = field(default_factory=dict)  # program as Go names it -> ours
    # module -> its folder of manifests, which is kept as `manifests` beside the programs
    manifests: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> Path:
        """The folder with go.mod and go.sum (and the source, where the tool is our own)."""
        return _GOTOOLS / self.name

    @property
    def flags(self) -> list[str]:
        """The flags that decide what the program is; part of the hash."""
        link = " ".join(["-s", "-w", *(f"-X {k}={v}" for k, v in self.variables.items())])
        return ["-trimpath", "-ldflags", link]

    @property
    def bin(self) -> Path:
        """Where the finished programs lie."""
        content = [file.read_bytes() for file in sorted(self.module.iterdir())]
        content.append(repr((self.flags, self.renames)).encode())
        content += [repr(self.manifests).encode()] if self.manifests else []
        key = hashlib.sha256(b"\0".join(content)).hexdigest()[:16]
        return cache_dir() / "bin" / f"{self.name}-{key}"


_COMPONENT = "k8s.io/component-base/version"
TOOL_SETS = {
    tools.name: tools
    for tools in (
        ToolSet("etcd", "1-2 min", renames={"server": "etcd"}),
        ToolSet(
            "kubernetes",
            "6 min",
            # without these the API server calls itself v0.0.0, and clients refuse it
            variables={
                f"{_COMPONENT}.gitVersion": "v1.34.4",
                f"{_COMPONENT}.gitMajor": "1",
                f"{_COMPONENT}.gitMinor": "34",
            },
        ),
        ToolSet("helm", "2 min"),
        ToolSet("kwok", "1-2 min"),
        # the Gateway API's endpoint picker, and `pick`, which asks it as a gateway would
        ToolSet(
            "epp", "2-4 min", manifests={"sigs.k8s.io/gateway-api-inference-extension": "config"}
        ),
        ToolSet("pause", "seconds"),
        ToolSet(
            "keda",
            "8 min",
            renames={"operator": "keda-operator", "adapter": "keda-adapter"},
            manifests={"github.com/kedacore/keda/v2": "config"},
        ),
    )
}


def ensure(name: str) -> Path:
    """Return the folder with the programs of a tool set, built first if need be."""
    tools = TOOL_SETS[name]
    if tools.bin.is_dir():
        return tools.bin
    with locked(tools.bin.with_suffix(".lock")):  # another session may be building the same
        if not tools.bin.is_dir():
            _build(tools)
    return tools.bin


def _build(tools: ToolSet) -> None:
    go = find_go(tools.module / "go.mod")
    _say(f"building {tools.name} from Go modules (once; takes {tools.takes} on two cores)")
    start = time.monotonic()
    tools.bin.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.bin.parent, prefix=f".{tools.name}-") as scratch:
        target = Path(scratch) / "bin"
        argv = [str(go), "build", "-v", *tools.flags, "-o", f"{target}/", "tool"]
        _run_with_progress(argv, tools, Path(scratch) / "build.log")
        for old, new in tools.renames.items():
            (target / old).rename(target / new)
        for module, folder in tools.manifests.items():
            _copy_manifests(go, tools, module, folder, target / "manifests")
        target.rename(tools.bin)  # all or nothing: a killed build leaves no half set
    _say(f"built {tools.name} in {time.monotonic() - start:.0f} s")


def _run_with_progress(argv: Sequence[str], tools: ToolSet, log: Path) -> None:
    """Run a verbose `go build`: one line of output per package it compiles."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    start = time.monotonic()
    with log.open("wb") as output:
        build = subprocess.Popen(
            argv, cwd=tools.module, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while not _ended(build):
                packages = log.read_bytes().count(b"\n")
                elapsed = time.monotonic() - start
                _say(f"  {tools.name}: {packages} packages compiled, {elapsed:.0f} s")
        except BaseException:
            build.kill()
            build.wait()
            raise
    if build.returncode:
        raise ClusterError(_build_failure(tools, log))


def _copy_manifests(go: Path, tools: ToolSet, module: str, folder: str, target: Path) -> None:
    argv = [str(go), "list", "-m", "-f", "{{.Dir}}", module]
    where = subprocess.run(argv, cwd=tools.module, capture_output=True, text=True, check=True)
    # the module cache is read-only, and what is copied must not be
    shutil.copytree(Path(where.stdout.strip()) / folder, target, copy_function=shutil.copyfile)


def _ended(build: subprocess.Popen[bytes]) -> bool:
    try:
        build.wait(_PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _build_failure(tools: ToolSet, log: Path) -> str:
    lines = [f"  {line}" for line in log.read_text(errors="replace").splitlines()[-15:]]
    return "\n".join(
        [
            f"building {tools.name} failed; the last of its output:",
            *lines,
            "Go takes modules from a module proxy: if none can be reached from here, set GOPROXY.",
        ]
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build the named tool sets, all without names, and print where they lie."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.tools", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*TOOL_SETS, []], metavar="NAME")
    try:
        for name in parser.parse_args(argv).names or TOOL_SETS:
            print(ensure(name))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
