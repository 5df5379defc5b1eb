"""The operator's own /metrics: what it decided for each QwenDeployment, and how it fares itself.

Served by `figures`, read from what `scaling` and `controller` hold when Prometheus asks. Labels
`namespace` and `deployment` are those of the QwenDeployment, as the chart's monitors put on the
engines' series (honorLabels keeps them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qwen_operator import __version__
from qwen_operator.autoscaling.signal import Signal

Key = tuple[str, str]  # namespace, name
_LABELS = ("namespace", "deployment")
_Values = Iterable[tuple[tuple[str, ...], float]]  # labels' values with the series' value
_USUAL_DECISIONS = (("up", "BlocksNeeded"), ("down", "BlocksSpare"))


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What was last decided for a QwenDeployment with spec.autoscaling.

    Attributes:
        pods: how many are ready, loading, and ready but silent.
        cold_start_seconds: what a start is expected to take.
        age_seconds: since it was decided.
    """

    key: Key
    replicas: int
    pods: Mapping[str, int]
    signal: Signal
    cold_start_seconds: float
    age_seconds: float


@dataclass(slots=True)
class Tally:
    """What is counted on the way: kept by `controller` and `scaling`.

    Attributes:
        passes: by result, done or failed.
        decisions: changes of the replicas wanted, by key, direction and reason.
        conditions: of each QwenDeployment, as last written.
    """

    passes: Counter[str] = field(default_factory=lambda: Counter(done=0, failed=0))
    decisions: Counter[tuple[Key, str, str]] = field(default_factory=Counter)
    conditions: dict[Key, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def begin(self, key: Key) -> None:
        """Count from zero: `increase` does not see the first of a counter that begins with one."""
        for direction, reason in _USUAL_DECISIONS:
            self.decisions.setdefault((key, direction, reason), 0)

    def forget(self, key: Key) -> None:
        """Drop a QwenDeployment that is gone."""
        self.conditions.pop(key, None)
        for known in [known for known in self.decisions if known[0] == key]:
            del self.decisions[known]


class OperatorSeries(Collector):
    """Turns the present state into series at the moment of the scrape."""

    def __init__(
        self,
        tally: Tally,
        states: Callable[[], Iterable[ScalingState]],
        misses: Callable[[], Mapping[str, int]],
    ) -> None:
        self._tally, self._states, self._misses = tally, states, misses
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        yield _gauge("info", "1; its label is the version.", ("version",), [((__version__,), 1)])
        passes = {(result,): count for result, count in self._tally.passes.items()}
        yield _counter("reconciliations", "Looks at a QwenDeployment.", ("result",), passes.items())
        misses = {(cause,): count for cause, count in self._misses().items()}
        yield _counter(
            "scrape_misses", "Engines' answers that were not used.", ("cause",), misses.items()
        )
        decisions = {
            (*key, direction, reason): count
            for (key, direction, reason), count in self._tally.decisions.items()
        }
        labels = (*_LABELS, "direction", "reason")
        text = "Times that another number of replicas was wanted."
        yield _counter("scaling_decisions", text, labels, decisions.items())
        yield _conditions(self._tally.conditions)
        yield from _scaling(list(self._states()))


def _conditions(known: Mapping[Key, Sequence[Mapping[str, Any]]]) -> Metric:
    values = {
        (*key, condition["type"], condition["status"], condition["reason"]): 1
        for key, conditions in known.items()
        for condition in conditions
    }
    text = "1 for each condition of each QwenDeployment, with its status and reason."
    return _gauge("condition", text, (*_LABELS, "condition", "status", "reason"), values.items())


def _scaling(states: list[ScalingState]) -> Iterator[Metric]:
    wanted = {
        (*s.key, s.signal.reason): s.signal.replicas
        for s in states
        if s.signal.replicas is not None
    }
    text = "Replicas that the KV blocks ask for, before limits, and why."
    yield _gauge("replicas_wanted", text, (*_LABELS, "reason"), wanted.items())
    pods = {(*s.key, state): n for s in states for state, n in s.pods.items()}
    yield _gauge(
        "pods", "Pods: ready, of which silent, and loading.", (*_LABELS, "state"), pods.items()
    )
    blocks = {
        (*s.key, state): getattr(s.signal, state)
        for s in states
        for state in ("total", "free", "used", "cached")
    }
    text = "KV blocks of the pods that answer; free + used = total, cached ones are free."
    yield _gauge("blocks", text, (*_LABELS, "state"), blocks.items())
    for name, text, value in _PLAIN:
        known = [(s.key, value(s)) for s in states]
        yield _gauge(name, text, _LABELS, [(k, v) for k, v in known if v is not None])


_PLAIN: tuple[tuple[str, str, Callable[[ScalingState], float | None]], ...] = (
    ("replicas", "Replicas asked for now.", lambda s: s.replicas),
    ("free_block_ratio", "Free blocks of all, pods that load included.",
     lambda s: s.signal.free_ratio),
    ("net_blocks_per_second", "Blocks taken less given back, over a minute.",
     lambda s: s.signal.net_blocks_per_second),
    ("seconds_to_exhaustion", "Free blocks at that rate; none while it does not fall.",
     lambda s: s.signal.seconds_to_exhaustion),
    ("decision_age_seconds", "Seconds since the decision.", lambda s: s.age_seconds),
    ("cold_start_seconds", "What a start is expected to take.", lambda s: s.cold_start_seconds),
)  # fmt: skip


def _gauge(name: str, text: str, labels: Sequence[str], values: _Values) -> Metric:
    return _filled(GaugeMetricFamily(f"qwen_operator_{name}", text, labels=labels), values)


def _counter(name: str, text: str, labels: Sequence[str], values: _Values) -> Metric:
    return _filled(CounterMetricFamily(f"qwen_operator_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: _Values) -> Metric:
    for labels, value in values:
        family.add_metric(labels, value)
    return family
