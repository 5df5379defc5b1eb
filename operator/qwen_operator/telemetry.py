"""The operator's own series for Prometheus: what it decides and why, and what it disbelieves.

Served by `figures` at /metrics; made by `outlets`. Figures are read when Prometheus asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qwen_operator.scaling import Scaler

_LABELS = ("namespace", "deployment")


class Telemetry:
    """The registry."""

    def __init__(self, scaler: Scaler) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Decisions(scaler))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return Prometheus' text format."""
        return generate_latest(self._registry)


class _Decisions(Collector):
    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        yield self._misses()
        wanted = GaugeMetricFamily(
            "qwen_operator_replicas_wanted", "Replicas that the load asks for, and why.",
            labels=(*_LABELS, "reason"),
        )  # fmt: skip
        present = _gauge("replicas", "Replicas that are asked for now.")
        free = _gauge("free_block_ratio", "Free KV blocks over all; loading pods count as free.")
        left = _gauge("seconds_to_exhaustion", "Free KV blocks over the rate at which they go.")
        age = _gauge("decision_age_seconds", "Seconds since the decision.")
        for key, decision in self._scaler.decisions():
            signal = decision.signal
            present.add_metric(key, decision.replicas)
            age.add_metric(key, decision.age_seconds)
            if signal.replicas is not None:
                wanted.add_metric((*key, signal.reason), signal.replicas)
            if signal.free_ratio is not None:
                free.add_metric(key, signal.free_ratio)
            if signal.seconds_to_exhaustion is not None:
                left.add_metric(key, signal.seconds_to_exhaustion)
        yield from (wanted, present, free, left, age)

    def _misses(self) -> Metric:
        family = CounterMetricFamily(
            "qwen_operator_scrape_misses", "Answers of engines that were not used, by cause.",
            labels=("cause",),
        )  # fmt: skip
        for cause, count in self._scaler.misses().items():
            family.add_metric((cause,), count)
        return family


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"qwen_operator_{name}", text, labels=_LABELS)
