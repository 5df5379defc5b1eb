"""The plan against what the process takes of memory when it sees pictures: within 10 %."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.contract.conftest import NAME
from tests.contract.server_process import ServerProcess
from tests.contract.test_memory import planned
from tests.models.tiny_vision import build_tiny_vision


def picture(side: int, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def test_a_model_that_sees_takes_what_was_planned_line_by_line(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(
        str(build_tiny_vision("2b")), "--served-model-name", NAME, "--device", "cpu",
        "--max-model-len", "2048", "--max-num-seqs", "4", "--num-gpu-blocks-override", "128",
        "--block-size", "32",
    ).wait_ready()  # fmt: skip
    for seed in range(2):  # of the largest size that is planned, one after the other
        content = [{"type": "image_url", "image_url": {"url": picture(1024, seed)}}]
        body = {"model": NAME, "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
        status, answer = server.post("/v1/chat/completions", body)[:2]
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] > 1024
    stats = server.get("/stats")[1]
    expected, measured = planned(stats), stats["measured"]
    assert measured.keys() == expected.keys()
    for component in ("vision-tower", "encoder-cache", "weights", "kv-cache"):
        assert measured[component] == expected[component], component
    assert sum(measured.values()) == pytest.approx(sum(expected.values()), rel=0.10), (
        f"planned {expected}, measured {measured}"
    )
