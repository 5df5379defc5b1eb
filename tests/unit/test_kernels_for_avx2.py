"""What the C++ computes with AVX2, where the processor has AVX-512 and takes that by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_engine.kernels.library import NativeLibrary

HERE = Path(__file__).parent
MODULES = (
    "test_eight_bit_cache", "test_gemm", "test_int8", "test_layer_stack", "test_native_layers",
    "test_vision_kernels",
)  # fmt: skip


def kernels_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("QWEN_KERNELS", kind)
    found = NativeLibrary.find()
    return found.kernels if found else ()


def test_avx2_multiplies_pairs_without_an_instruction_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kernels_of("avx2", monkeypatch):
        pytest.skip("the C++ was not built, or this processor has no AVX2")
    found = NativeLibrary.find()
    assert found is not None
    assert found.kernels == ("fma",)
    assert found.multiplies_pairs


def test_no_library_is_found_under_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_of("none", monkeypatch) == ()


def test_every_kernel_holds_with_avx2_where_avx512_is_taken_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kernels_of("avx512", monkeypatch) or not kernels_of("avx2", monkeypatch):
        pytest.skip("the other tests take AVX2 already, or nothing was built")
    tests = [str(HERE / f"{name}.py") for name in MODULES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "QWEN_KERNELS": "avx2", "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True, check=False, cwd=HERE.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
