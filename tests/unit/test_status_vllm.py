"""vLLM's blocks in status, read from its /metrics."""

from __future__ import annotations

import pytest

from qwen_operator import block_pool, names
from qwen_operator.cli.render import blocks_line
from qwen_operator.pods import parse_pods
from qwen_operator.scrape import parse_vllm

INFO = (
    'vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",'
    'num_cpu_blocks="None",num_gpu_blocks="1001",num_gpu_blocks_override="None"} 1.0'
)
USE = 'vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.25'
METRICS = f"""\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
{USE}
# TYPE vllm:cache_config_info gauge
{INFO}
"""


def test_blocks_are_those_of_the_pool_without_its_null_block() -> None:
    reading = parse_vllm(METRICS.encode())
    assert reading is not None
    assert reading.blocks == {"total": 1000, "free": 750, "used": 250}


def test_several_engines_in_a_pod_are_added_up() -> None:
    second = METRICS.replace('engine="0"', 'engine="1"').replace("0.25", "1e-3")
    reading = parse_vllm((METRICS + second).encode())
    assert reading is not None
    assert reading.blocks == {"total": 2000, "free": 1749, "used": 251}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        USE,
        INFO,
        METRICS.replace('num_gpu_blocks="1001"', 'num_gpu_blocks="None"'),
        METRICS.replace("0.25", "1.5"),
        METRICS.replace("0.25", "NaN"),
        METRICS.replace('engine="0",model', 'engine="1",model'),
    ],
)
def test_metrics_that_do_not_say_it_all_are_no_reading(body: str) -> None:
    assert parse_vllm(body.encode()) is None


def test_blocks_without_cached_ones_are_added_up_and_shown_without() -> None:
    blocks = block_pool.add_up([{"total": 10, "free": 4, "used": 6}] * 2, None)
    assert blocks == {"total": 20, "free": 8, "used": 12}
    assert blocks_line(blocks).endswith("8 of 20 blocks free")


@pytest.mark.parametrize(("label", "is_vllm"), [({names.RUNTIME_LABEL: "vllm"}, True), ({}, False)])
def test_a_pod_says_by_label_which_engine_it_runs(label: dict[str, str], is_vllm: bool) -> None:
    [pod] = parse_pods([{"metadata": {"name": "a", "labels": label}}])
    assert pod.is_vllm is is_vllm
