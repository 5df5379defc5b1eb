"""Stand-ins for engines: each answers /stats on the engine's port of a loopback address."""

from __future__ import annotations

import itertools
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.control_plane.qwen import Qwen

# of this process alone: other clones may run the same tests on this machine
_NET = f"127.{64 + os.getpid() // 250 % 64}.{os.getpid() % 250}"
_ADDRESSES = (f"{_NET}.{number}" for number in itertools.count(1))


def free_address() -> str:
    """Return a loopback address of this process alone, for one engine."""
    return next(_ADDRESSES)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of askers who did not wait for the answer."""


class Engine:
    """Answers /stats, on the engine's port of an address of its own."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.measured: dict[str, int] = {}
        self.raw: bytes | None = None
        self.redirect = ""  # where /stats sends who asks
        self.answers = threading.Event()  # cleared: takes questions, and says nothing
        self.answers.set()
        self.address = free_address()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.answers.wait(60)
                is_elsewhere = self.path == "/stats" and engine.redirect != ""
                self.send_response(302 if is_elsewhere else 200)
                if is_elsewhere:
                    self.send_header("Location", engine.redirect)
                self.end_headers()
                bodies = {"/stats": engine.body, "/metrics": engine.metrics}
                self.wfile.write(bodies.get(self.path, lambda: b"{}")())

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server((self.address, 8000), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def body(self) -> bytes:
        """What /stats says: of 100 blocks, and of requests that hold 20 each."""
        if self.raw is not None:
            return self.raw
        used = 100 - self.free
        counts = {"total": 100, "free": self.free, "used": used, "cached": 0}
        said: dict[str, Any] = {f"num_{k}_gpu_blocks": v for k, v in counts.items()}
        said |= {f"num_requests_{k}": 0 for k in ("waiting", "swapped", "finished")}
        said |= {"num_requests_running": used // 20, "measured": self.measured}
        return json.dumps({**said, "num_blocks_allocated": used, "num_blocks_freed": 0}).encode()

    def metrics(self) -> bytes:
        """What vLLM's /metrics would say of the same blocks."""
        return (
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101"} 1.0\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {1 - self.free / 100}\n'
        ).encode()

    def close(self) -> None:
        """Stop answering."""
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


def give_address(qwen: Qwen, pod: str, engine: Engine | str) -> None:
    """Make a simulated pod's address the engine's."""
    address = engine if isinstance(engine, str) else engine.address
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    patch = json.dumps({"status": status})
    qwen.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)
