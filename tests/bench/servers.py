"""The rows over HTTP: start to ready, 1, 8 and 16 streaming clients, resident memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.engines import NUM_CORES, REPOSITORY, Engine, resident_bytes, signal_all

CLIENTS = (1, 8, 16)
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
SECONDS_TO_READY = 600


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a server is started and where it says that it is ready.

    Attributes:
        num_starts: of which the median is told; the last one serves.
    """

    name: str
    words: tuple[str, ...]
    ready_path: str
    environment: dict[str, str]
    num_starts: int = 1


def our_server(model: Path) -> ServerCommand:
    words = (sys.executable, "-m", "qwen_engine", "serve", str(model), "--dtype", "bfloat16",
             "--max-model-len", "4096", "--num-gpu-blocks-override", "640",
             "--block-size", "32", "--max-num-seqs", "32", "--host", "127.0.0.1",
             "--stats-port", "0")  # fmt: skip
    # The first comes right after the peers of the other rows gave many GiB back.
    return ServerCommand("ours", words, "/ready", {}, num_starts=3)


def vllm_server(engine: Engine, model: Path) -> ServerCommand:
    words = (str(engine.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
             "--dtype", engine.name.split(" ")[1], "--max-model-len", "4096",
             "--max-num-seqs", "32", "--host", "127.0.0.1")  # fmt: skip
    return ServerCommand(engine.name, words, "/health", engine.environment)


def measure_servers(commands: list[ServerCommand], repeats: int) -> dict[str, dict[str, float]]:
    """Return the figures of servers that take turns, by name; starts and throughputs are medians.

    They are started one after the other, so each comes up alone, and stopped between their turns.
    """
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        running: dict[str, tuple[int, int]] = {}
        for command in commands:
            starts = [_start_alone(command) for _ in range(command.num_starts - 1)]
            port, process, seconds = stack.enter_context(running_server(command))
            running[command.name] = port, process.pid
            starts.append(seconds)
            print(f"start: {command.name} {starts}", file=sys.stderr)
            figures[command.name] = {"start to ready, s": statistics.median(starts)}
            signal_all(process.pid, signal.SIGSTOP)
        for clients in CLIENTS:
            samples: dict[str, list[float]] = {name: [] for name in running}
            for repeat in range(repeats):
                for name, (port, pid) in running.items():
                    signal_all(pid, signal.SIGCONT)
                    samples[name].append(_throughput(port, clients, seed=100 * repeat + clients))
                    signal_all(pid, signal.SIGSTOP)
                    print(f"{clients} clients: {name} {samples[name][-1]:.1f}", file=sys.stderr)
            for name, found in samples.items():
                figures[name][f"HTTP, {clients} clients, tok/s"] = statistics.median(found)
        for name, (_, pid) in running.items():
            figures[name]["resident memory, GiB"] = resident_bytes(pid) / 2**30
    return figures


def _start_alone(command: ServerCommand) -> float:
    with running_server(command) as (_, _, seconds):
        return seconds


@contextmanager
def running_server(
    command: ServerCommand,
) -> Iterator[tuple[int, subprocess.Popen[bytes], float]]:
    """Yield a server's port, process and seconds until it was ready; it ends with the context."""
    port = _free_port()
    environment = {
        **os.environ, "OMP_NUM_THREADS": str(NUM_CORES), "HF_HUB_OFFLINE": "1",
        **command.environment,
    }  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(
        ["taskset", "-c", f"0-{NUM_CORES - 1}", *command.words, "--port", str(port)],
        cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_until_ready(port, command.ready_path, process)
        yield port, process, time.perf_counter() - began
    finally:
        signal_all(process.pid, signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:  # vLLM's, when its engine is gone
            process.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_until_ready(port: int, path: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_TO_READY
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)  # each question takes the interpreter that is to become ready
    raise TimeoutError(f"not ready within {SECONDS_TO_READY} s")


def _throughput(port: int, clients: int, *, seed: int) -> float:
    """Have `qwen-engine bench` drive either server, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "qwen_engine", "bench", "--url", f"http://127.0.0.1:{port}",
         "--num-prompts", str(max(2, clients)), "--max-concurrency", str(clients),
         "--input-len", str(PROMPT_TOKENS), "--output-len", str(OUTPUT_TOKENS),
         "--seed", str(seed)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(json.loads(done.stdout)["output_tokens_per_second"])
