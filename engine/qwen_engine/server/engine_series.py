"""The engine's own figures as series: vLLM's under vLLM's names and labels, ours under `qwen_`.

Read from frozen snapshots when Prometheus asks, so a scrape never waits for a step. Used by
`metrics`, which counts what happens to requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qwen_engine.launch import Launched, Progress

if TYPE_CHECKING:
    from qwen_engine.engine_stats import EngineStats

LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a scrape reads."""

    model_name: str
    progress: Progress
    stats: EngineStats | None
    launched: Launched | None


class EngineCollector(Collector):
    """Turns one snapshot into series at the moment of the scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from _load_series(snapshot)
        if snapshot.stats is not None and snapshot.launched is not None:
            labels = (snapshot.model_name, "0")
            yield from _queue_series(snapshot.stats, labels)
            yield from _token_series(snapshot.stats, labels)
            yield _lora_series()
            yield _cache_config(snapshot.stats, snapshot.launched)
            yield from _block_series(snapshot.stats)
            yield _memory_series(snapshot.launched)


def _queue_series(stats: EngineStats, labels: tuple[str, str]) -> Iterator[Metric]:
    usage = stats.num_used_blocks / stats.num_total_blocks
    yield _gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 %.", usage, labels)
    running, waiting = stats.num_running, stats.num_waiting
    yield _gauge("vllm:num_requests_running", "Requests in execution.", running, labels)
    yield _gauge("vllm:num_requests_waiting", "Requests waiting.", waiting, labels)
    by_reason = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.",
        labels=(*LABELS, "reason"),
    )  # fmt: skip
    by_reason.add_metric((*labels, "capacity"), waiting)
    by_reason.add_metric((*labels, "deferred"), 0)
    yield by_reason


def _token_series(stats: EngineStats, labels: tuple[str, str]) -> Iterator[Metric]:
    for name, text, value in (
        ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.",
         stats.prefix_cache_queries),
        ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits),
        # What the swap space saves is in the two above; there is no cache beyond this process.
        ("vllm:external_prefix_cache_queries", "Tokens looked up in caches of others.", 0),
        ("vllm:external_prefix_cache_hits", "Tokens found in caches of others.", 0),
        ("vllm:mm_cache_queries", "Images and videos looked up in their cache.",
         stats.mm_cache_queries),
        ("vllm:mm_cache_hits", "Images and videos found in their cache.", stats.mm_cache_hits),
        ("vllm:num_preemptions", "Preemptions.", stats.num_preemptions),
        ("vllm:prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", stats.output_tokens),
    ):  # fmt: skip
        yield _counter(name, text, value, labels)


def _lora_series() -> Metric:
    """Adapters are not served; the Gateway API's endpoint picker asks each server for them."""
    labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use.", labels=labels)
    family.add_metric(("0", "", ""), time.time())
    return family


def _cache_config(stats: EngineStats, launched: Launched) -> Metric:
    """vLLM's way to publish constants: a gauge of 1 whose labels are the values; no model_name."""
    values = {
        "engine": "0",
        "block_size": str(stats.block_size),
        "num_gpu_blocks": str(stats.num_total_blocks),
        "num_cpu_blocks": str(stats.num_total_swap_blocks),
        "cache_dtype": launched.config.kv_cache_dtype,
        "enable_prefix_caching": str(launched.config.enable_prefix_caching),
        "gpu_memory_utilization": f"{launched.plan.gpu_memory_utilization:g}",
    }
    family = GaugeMetricFamily(
        "vllm:cache_config_info", "Settings of the KV cache.", labels=tuple(values)
    )
    family.add_metric(tuple(values.values()), 1)
    return family


def _block_series(stats: EngineStats) -> Iterator[Metric]:
    for name, text, kind in (
        ("qwen_kv_blocks", "KV blocks; free + used = total, cached ones are free.", "blocks"),
        ("qwen_swap_blocks", "The same for the swap space in host memory.", "swap_blocks"),
    ):
        blocks = GaugeMetricFamily(name, text, labels=("state",))
        for state in ("total", "free", "used", "cached"):
            blocks.add_metric((state,), getattr(stats, f"num_{state}_{kind}"))
        yield blocks
    for name, text, value in (
        ("qwen_kv_blocks_allocated", "KV blocks taken.", stats.blocks_allocated),
        ("qwen_kv_blocks_freed", "KV blocks given back.", stats.blocks_freed),
        ("qwen_swap_out_blocks", "Blocks copied to the swap space.", stats.blocks_swapped_out),
        ("qwen_swap_in_blocks", "Blocks copied back from it.", stats.blocks_swapped_in),
    ):
        yield CounterMetricFamily(name, text, value=value)
    yield GaugeMetricFamily(
        "qwen_requests_swapped", "Requests whose blocks are in the swap space.",
        value=stats.num_swapped,
    )  # fmt: skip


def _load_series(snapshot: Snapshot) -> Iterator[Metric]:
    progress = snapshot.progress
    yield CounterMetricFamily(
        "qwen_model_load_bytes", "Bytes of weights read so far.", value=progress.loaded_bytes
    )
    yield GaugeMetricFamily(
        "qwen_model_load_progress", "Share of the model that is loaded; 1 is all.",
        value=progress.loaded_share,
    )  # fmt: skip


def _memory_series(launched: Launched) -> Metric:
    family = GaugeMetricFamily(
        "qwen_memory_bytes", "Bytes by component, as planned and as measured.",
        labels=("component", "kind"),
    )  # fmt: skip
    for line in (*launched.plan.ledger, *launched.plan.host_ledger):
        family.add_metric((line.component, "planned"), line.num_bytes)
    for component, num_bytes in launched.engine.measured.lines().items():
        family.add_metric((component, "measured"), num_bytes)
    return family


def _gauge(name: str, text: str, value: float, labels: tuple[str, str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=LABELS)
    family.add_metric(labels, value)
    return family


def _counter(name: str, text: str, value: float, labels: tuple[str, str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=LABELS)
    family.add_metric(labels, value)
    return family
