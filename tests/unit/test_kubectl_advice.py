"""The advice of `kubectl qwen status`: from lasting states only, with the figures behind it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qwen_operator.cli.advice import advise
from qwen_operator.cli.render import bar, duration
from qwen_operator.observed import Observed
from tests.unit.operator_states import gpu_spec, h100, l4, look, resource, settle

START = datetime(2026, 1, 1, tzinfo=UTC)
POOLS = Observed(nodes=(l4(), h100()))


def state(level: str, spec: dict[str, Any], observed: Observed | None = None) -> dict[str, Any]:
    about, _ = settle(resource(spec), observed)
    used = {"NearlyFull": 99, "NearlyEmpty": 1}.get(level, 50)
    about["status"]["blocks"] = {"total": 100, "free": 100 - used, "used": used, "cached": 0}
    about["status"]["pool"] = {"level": level, "since": START.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return about


def after(about: dict[str, Any], **span: float) -> list[str]:
    return advise(about, START + timedelta(**span))


def test_a_pool_that_has_long_been_full_suggests_replicas_and_the_larger_gpu() -> None:
    about = state("NearlyFull", gpu_spec(), POOLS)
    assert after(about, minutes=9) == []
    [words] = after(about, hours=2, minutes=5)
    assert "nearly full for 2h5m" in words
    assert "raise spec.replicas (now 1)" in words
    assert "spec.gpu.product to NVIDIA-H100-80GB-HBM3" in words


def test_a_pool_that_has_long_been_empty_suggests_less() -> None:
    about = state("NearlyEmpty", gpu_spec(replicas=3, gpu={"product": h100().product}), POOLS)
    assert after(about, hours=23) == []
    [words] = after(about, days=3)
    assert "nearly empty for 3d (1 of 100 blocks used)" in words
    assert "lower spec.replicas (now 3)" in words


def test_an_empty_pool_on_the_larger_of_two_kinds_names_the_smaller() -> None:
    about = state("NearlyEmpty", gpu_spec(), POOLS)
    for row in about["status"]["plan"]["pools"]:
        row["chosen"] = not row["chosen"]
    [words] = after(about, days=2)
    assert "spec.gpu.product to NVIDIA-L4" in words


@pytest.mark.parametrize(
    ("level", "field"),
    [("NearlyFull", "raise spec.engine.resources"), ("NearlyEmpty", "lower spec.engine.resources")],
)
def test_on_a_cpu_the_memory_limit_is_what_moves(level: str, field: str) -> None:
    spec = {"model": {"id": "Qwen/Qwen3-0.6B"}, "gpu": {"count": 0}}
    [words] = after(state(level, spec), days=2)
    assert field in words


def test_a_normal_pool_needs_none_however_long() -> None:
    assert after(state("Normal", gpu_spec(), POOLS), days=99) == []


def test_a_change_that_nobody_has_seen_asks_whether_the_operator_runs() -> None:
    about = resource(generation=3, status=dict(look(resource()).status))
    [words] = advise(about, START)
    assert "does it run?" in words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3725, "1h2m"), (90000, "1d1h"), (86400, "1d")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_bars_show_what_is_small_and_never_overflow() -> None:
    assert [bar(share, 4) for share in (0, 0.001, 0.5, 1, 7)] == [
        "····", "█···", "██··", "████", "████",
    ]  # fmt: skip
