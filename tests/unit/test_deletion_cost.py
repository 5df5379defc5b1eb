"""Which pods go first: the least used, told to Kubernetes seldom, and exactly before a scale-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qwen_operator.cluster import Kind
from qwen_operator.deletion_cost import costs_before_scale_in, drift
from qwen_operator.errors import ApiError, RefusedError
from qwen_operator.names import DELETION_COST_ANNOTATION
from qwen_operator.pods import PodFacts, parse_pods
from qwen_operator.readings import Readings
from qwen_operator.scale_in import WRITE_SECONDS, WRITES_AT_ONCE, DeletionCosts
from qwen_operator.status import Reading
from tests.unit.operator_states import pod as pod_json

KEY = ("ns", "chat")


def pod(name: str, cost: int = 0, *, ready: bool = True) -> PodFacts:
    return PodFacts(name, "n", "198.19.0.1", ready, True, None, uid=name, deletion_cost=cost)


def blocks(used: int, total: int = 100) -> dict[str, int]:
    return {"total": total, "free": total - used, "used": used, "cached": 0}


@pytest.mark.parametrize(
    ("used", "cost", "is_written"),
    [(0, 0, False), (1, 0, True), (0, 1, True), (50, 45, False), (50, 39, True), (39, 50, True),
     (100, 100, False)],
)  # fmt: skip
def test_a_cost_is_worth_a_write_when_far_off_or_when_the_pod_turned_idle(
    used: int, cost: int, is_written: bool
) -> None:
    assert (drift(pod("a", cost), blocks(used)) > 0) is is_written


def test_before_a_scale_in_costs_are_exact_where_the_wrong_pods_would_go() -> None:
    pods = [pod("a", 50), pod("b", 45), pod("c", 90)]
    told = {"a": blocks(44), "b": blocks(52), "c": blocks(90)}
    assert costs_before_scale_in(pods, told, going=1) == {"a": 44, "b": 52}
    assert costs_before_scale_in(pods, told, going=2) == {}, "c stays either way"


def test_equal_costs_are_told_apart_but_equally_used_pods_need_no_write() -> None:
    pods = [pod("a"), pod("b")]
    assert costs_before_scale_in(pods, {"a": blocks(2), "b": blocks(1)}, 1) == {"a": 2, "b": 1}
    assert costs_before_scale_in(pods, {"a": blocks(7), "b": blocks(7)}, 1) == {}


def test_pods_that_are_not_ready_go_first_and_cost_no_write() -> None:
    pods = [pod("a"), pod("b"), pod("c", ready=False)]
    told = {"a": blocks(2), "b": blocks(1)}
    assert costs_before_scale_in(pods, told, going=1) == {}
    assert costs_before_scale_in(pods, told, going=2) == {"a": 2, "b": 1}
    assert costs_before_scale_in(pods, told, going=3) == {}, "all go"


def test_a_pod_that_does_not_answer_keeps_its_cost() -> None:
    pods = [pod("a", 30), pod("b", 10)]
    assert costs_before_scale_in(pods, {"b": blocks(60)}, 1) == {"b": 60}


def test_the_annotation_is_read_and_what_is_no_number_counts_as_none() -> None:
    found = pod_json("a", ready=True)
    found["metadata"]["annotations"] = {DELETION_COST_ANNOTATION: "12"}
    assert parse_pods([found])[0].deletion_cost == 12
    found["metadata"]["annotations"] = {DELETION_COST_ANNOTATION: "x"}
    assert parse_pods([found])[0].deletion_cost == 0


class Written:
    """Takes annotations, and puts them on the pods as a watch would."""

    def __init__(self, readings: Heard) -> None:
        self.readings = readings
        self.writes: list[tuple[str, str]] = []
        self.error: ApiError | None = None

    async def annotate(
        self, kind: Kind, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str]
    ) -> None:
        if self.error is not None:
            raise self.error
        assert (kind.kind, uid) == ("Pod", name)
        self.writes.append((name, annotations[DELETION_COST_ANNOTATION]))


class Heard(Readings):
    """Readings that a test writes."""

    def hear(self, key: tuple[str, str], used: Mapping[str, int], **costs: int) -> None:
        self._pods[key] = tuple(pod(name, costs.get(name, 0)) for name in used)
        self._readings[key] = {name: Reading(blocks=blocks(n)) for name, n in used.items()}

    async def ask(self, key: tuple[str, str]) -> None:
        pass


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.readings = Heard()
        self.cluster = Written(self.readings)
        cluster: Any = self.cluster
        self.costs = DeletionCosts(cluster, self.readings, lambda: self.now)


async def test_a_pod_is_written_at_most_once_in_thirty_seconds_however_it_moves() -> None:
    bench = Bench()
    for second in range(0, 300, 5):
        bench.now = 1000.0 + second
        bench.readings.hear(KEY, {"a": 90 if second % 2 else 10, "b": 50}, b=50)
        await bench.costs.keep()
    assert 2 <= len(bench.cluster.writes) <= 300 / WRITE_SECONDS
    assert {name for name, _ in bench.cluster.writes} == {"a"}


async def test_idle_pods_and_single_ones_are_never_written() -> None:
    bench = Bench()
    bench.readings.hear(KEY, {"a": 0, "b": 0})
    bench.readings.hear(("ns", "alone"), {"c": 80})
    for _ in range(100):
        bench.now += WRITE_SECONDS
        await bench.costs.keep()
    assert bench.cluster.writes == []


async def test_a_great_fleet_is_written_the_farthest_off_first_and_so_many_at_once() -> None:
    bench = Bench()
    for number in range(100):
        bench.readings.hear(("ns", f"d{number}"), {f"a{number}": number, f"b{number}": 0})
    await bench.costs.keep()
    assert len(bench.cluster.writes) == WRITES_AT_ONCE
    assert bench.cluster.writes[0] == ("a99", "99")
    await bench.costs.keep()
    assert len(bench.cluster.writes) == 99, "the rest follows, and none twice"


async def test_a_refusal_is_told_once_and_hinders_no_scale_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.readings.hear(KEY, {"a": 5, "b": 9})
    bench.cluster.error = RefusedError(403, "Forbidden", "may not patch pods")
    await bench.costs.settle(KEY, going=1)
    await bench.costs.settle(KEY, going=1)
    assert [r.getMessage() for r in caplog.records if "may not patch pods" in r.getMessage()] == [
        "which pod goes first is left to Kubernetes: may not patch pods"
    ]
