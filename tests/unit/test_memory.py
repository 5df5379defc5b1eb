"""Measured memory: its lines add up, and the peak of loading is not counted as work."""

from __future__ import annotations

import pytest
import torch

from qwen_engine import memory
from qwen_engine.memory import MemoryMeasured, MemoryMeter

MIB = 2**20


def test_on_a_cpu_the_lines_add_up_to_the_peak() -> None:
    lines = MemoryMeasured(
        weights_bytes=300, kv_cache_bytes=200, process_bytes=1000, swap_bytes=50, rest_bytes=900
    ).lines()
    assert lines == {
        "runtime": 350, "weights": 300, "activations": 100, "kv-cache": 200, "swap": 50,
    }  # fmt: skip
    assert sum(lines.values()) == 1000


def test_a_tower_and_its_embeddings_have_lines_of_their_own() -> None:
    lines = MemoryMeasured(
        weights_bytes=300, kv_cache_bytes=200, process_bytes=1000, rest_bytes=800,
        vision_tower_bytes=100, encoder_cache_bytes=50,
    ).lines()  # fmt: skip
    assert lines == {
        "runtime": 200, "weights": 300, "vision-tower": 100, "activations": 150,
        "encoder-cache": 50, "kv-cache": 200,
    }  # fmt: skip


def test_beside_a_gpu_swap_and_host_are_the_hosts() -> None:
    lines = MemoryMeasured(
        weights_bytes=300, kv_cache_bytes=200, process_bytes=1000, swap_bytes=50, rest_bytes=900,
        host_bytes=700,
    ).lines()  # fmt: skip
    host = {"host-runtime": 650, "swap": 50}
    assert lines == {
        "runtime": 400, "weights": 300, "activations": 100, "kv-cache": 200, **host,
    }  # fmt: skip


def test_a_peak_before_the_meter_is_forgotten_and_one_after_it_is_kept() -> None:
    torch.ones(96 * MIB // 4)  # touched, and gone at once
    meter = MemoryMeter(torch.device("cpu"))
    assert meter.peak_bytes < meter.rest_bytes + 48 * MIB
    torch.ones(96 * MIB // 4)
    assert meter.peak_bytes > meter.rest_bytes + 80 * MIB


def test_without_the_kernels_word_on_peaks_what_is_seen_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_restart_peak", lambda: False)
    sizes = iter([100, 300, 200])
    monkeypatch.setattr(memory, "_status", lambda key: next(sizes) if key == "VmRSS" else 10**9)
    meter = MemoryMeter(torch.device("cpu"))
    assert [meter.peak_bytes, meter.peak_bytes] == [300, 300]
