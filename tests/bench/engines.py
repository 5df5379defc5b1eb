"""The engines under test: how each is started, and the process that answers jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_CORES = 2  # ours and the peers' alike


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with its settings."""

    name: str
    python: Path
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    has_batching: bool = True  # continuous, with a prefix cache


def peers_dir() -> Path:
    """Return the folder outside the clone that holds the peers' virtual environments."""
    root = os.environ.get("QWEN_CACHE_DIR") or Path.home() / ".cache" / "qwen-operator"
    return Path(root) / "peers"


def our_engine(model: Path) -> Engine:
    return Engine("ours", Path(sys.executable), "ours", (str(model),))


def peer_engines(asked: str, model: Path) -> list[Engine]:
    """Return a peer, `name` or `name:precision`, in each of the precisions it is measured in."""
    name, _, precision = asked.partition(":")
    engines = [e for e in _all(name, model) if precision in ("", e.name.split(" ")[1])]
    if not engines:
        raise SystemExit(f"{name} is not measured in {precision!r}")
    return engines


def _all(name: str, model: Path) -> list[Engine]:
    python = peers_dir() / name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is not there: sh tests/bench/peers.sh {name}")
    if name == "transformers":
        return [
            Engine(
                f"transformers {dtype}",
                python,
                "hf_transformers",
                (str(model), dtype),
                has_batching=False,
            )
            for dtype in ("bfloat16", "float32")
        ]
    if name == "vllm":
        return [
            Engine(f"vllm {dtype}", python, "vllm_cpu", (str(model), dtype), _vllm_settings(python))
            for dtype in ("bfloat16", "float16", "float32")
        ]
    if name == "openvino":
        exported = peers_dir() / f"{model.name}-openvino"
        return [
            Engine(f"openvino {hint}", python, "openvino_genai", (str(exported), hint))
            for hint in ("bf16", "f32")
        ]
    raise SystemExit(f"there is no peer {name!r}: transformers, vllm and openvino are known")


def _vllm_settings(python: Path) -> dict[str, str]:
    """What vLLM's own documentation recommends on CPUs."""
    packages = next((python.parents[1] / "lib").glob("python3*/site-packages"))
    preload = [
        *packages.glob("**/libiomp5.so"),
        Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ]
    return {
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_CORES - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


class Runner:
    """A loaded engine in its own process, stopped between its turns; a context manager.

    So nothing that an idle engine does costs the next one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(NUM_CORES),
            "HF_HUB_OFFLINE": "1",
            **engine.environment,
        }
        self._process = subprocess.Popen(
            ["taskset", "-c", f"0-{NUM_CORES - 1}", str(engine.python), "-m",
             f"tests.bench.runners.{engine.module}", *engine.arguments],
            cwd=REPOSITORY, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.facts = self._read()
        signal_all(self._process.pid, signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        signal_all(self._process.pid, signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def run(self, prompts: list[list[int]], max_tokens: int) -> float:
        """Return the seconds that it took, from all prompts at hand to the last token."""
        assert self._process.stdin is not None
        signal_all(self._process.pid, signal.SIGCONT)
        job = json.dumps({"prompts": prompts, "max_tokens": max_tokens})
        self._process.stdin.write(job + "\n")
        self._process.stdin.flush()
        answer = self._read()
        signal_all(self._process.pid, signal.SIGSTOP)
        if answer["num_tokens"] != len(prompts) * max_tokens:
            raise RuntimeError(
                f"{self.engine.name} gave {answer['num_tokens']} tokens, not as asked"
            )
        return float(answer["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.engine.name} ended: {self._process.wait()}")
        return dict(json.loads(line))


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all below it."""
    for one in _tree(pid):
        os.kill(one, number)


def resident_bytes(pid: int) -> int:
    """Return what a process and its children take, shared pages shared out."""
    return sum(_pss(one) for one in _tree(pid))


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for file in children for child in file.read_text().split()]
    return [pid, *(one for child in below for one in _tree(child))]


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024
