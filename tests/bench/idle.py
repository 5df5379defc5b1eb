"""`python -m tests.bench.idle`: what a server that nobody asks anything costs.

Starts one with the tiny model, has it answer once, waits until it has done what a start leaves for
quiet moments, and reads its processor time (/proc/PID/stat) over some seconds. Ends with 1 where
that is 1 % of a core or more. Idle threads of OpenMP would show here if they spun.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.contract.server_process import ServerProcess
from tests.models.tiny import build_tiny

TARGET_SHARE = 0.01  # of a core
SECONDS_TO_SETTLE = 5


def processor_seconds(pid: int) -> float:
    """Return what a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--model", type=Path, help="a folder (default: a tiny Qwen3)")
    arguments = parser.parse_args()
    model = arguments.model or build_tiny("qwen3-tied")
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(
            Path(folder) / "log", str(model), "--device", "cpu", "--max-model-len", "512",
            "--num-gpu-blocks-override", "256", "--block-size", "16",
        )  # fmt: skip
        try:
            server.wait_ready()
            status, _ = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 8})
            assert status == 200
            time.sleep(SECONDS_TO_SETTLE)
            before = processor_seconds(server.pid)
            time.sleep(arguments.seconds)
            share = (processor_seconds(server.pid) - before) / arguments.seconds
        finally:
            server.stop()
    print(f"idle: {100 * share:.2f} % of a core over {arguments.seconds:g} s, target below 1 %")
    return 0 if share < TARGET_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
