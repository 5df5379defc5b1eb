"""A few seconds of `tests.bench.soak`: random clients, a pool too small, and nothing left."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.bench.soak import soak, start_server
from tests.models.tiny import build_tiny


def test_random_clients_leave_no_block_used_and_meet_no_5xx(tmp_path: Path) -> None:
    server = start_server(build_tiny("qwen3-tied"), tmp_path / "server.log")
    try:
        server.wait_ready()
        report = asyncio.run(soak(server, seconds=4.0, num_samples=2))
    finally:
        server.stop()
    assert report.faults() == []
    for outcome in ("answered", "left", "refused"):
        assert report.tally.outcomes[outcome] > 0
