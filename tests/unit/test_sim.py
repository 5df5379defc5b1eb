"""The simulator: what it must conserve, and the autoscaler it imitates."""

from __future__ import annotations

import pytest

from tests.sim.contest import OURS, POLICIES, contest
from tests.sim.fleet import BLOCKS, SLOTS, Fleet, Replica, Request, Sequence, Tally
from tests.sim.hpa import Behavior, external, per_pod
from tests.sim.loads import SHAPES, Load, build_load
from tests.sim.ours import Ours
from tests.sim.policies import PodsHpa, kv_usage
from tests.sim.report import render_table, render_targets
from tests.sim.runner import count_turns, run
from tests.sim.traces import build_trace


def _load(
    seconds: int, per_second: int, *, prompt: int = 1000, output: int = 200, start: int = 0
) -> Load:
    draws = [(0.13 * i % 1, 0.71 * i % 1) for i in range(per_second)]
    arrivals = [[Request(start + s, prompt, output, d) for d in draws] for s in range(seconds)]
    return Load("even", [*arrivals, *([[]] * 120)], peaks=1)


def test_every_request_that_arrives_is_finished_and_gives_its_blocks_back() -> None:
    fleet = Fleet(replicas=4, cold_start=30)
    for now, arrivals in enumerate(_load(120, 4).seconds):
        fleet.step(now, arrivals)
        present = sum(replica.load for replica in fleet.replicas)
        assert fleet.tally.arrived == fleet.tally.finished + present
    assert fleet.tally.finished == 480
    assert [replica.used for replica in fleet.replicas] == pytest.approx([0.0] * 4, abs=1e-6)


def test_no_replica_ever_holds_more_than_its_pool_or_its_slots() -> None:
    fleet = Fleet(replicas=1, cold_start=30)
    for now, arrivals in enumerate(_load(60, 5, prompt=3000, output=3000).seconds):
        fleet.step(now, arrivals)
        replica = fleet.replicas[0]
        assert replica.used <= BLOCKS
        assert len(replica.running) <= SLOTS
    assert fleet.tally.preempted > 0
    assert fleet.tally.exhausted_seconds > 0


def test_a_preempted_sequence_keeps_the_length_of_its_answer() -> None:
    replica, tally = Replica(0, 0, 0), Tally()
    for _ in range(3):
        replica.queue.append(_sequence(prompt=41_000, output=2_000))
    for now in range(1, 400):
        replica.step(now, tally)
    assert tally.finished == 3
    assert tally.preempted >= 1
    assert replica.used == pytest.approx(0.0, abs=1e-6)


def _sequence(*, prompt: int, output: int) -> Sequence:
    return Sequence(Request(0, prompt, output, (0.0, 0.0)), prompt, output)


def test_a_draining_replica_takes_nothing_new_and_is_paid_for_until_it_is_empty() -> None:
    fleet = Fleet(replicas=2, cold_start=30)
    load = _load(10, 4)
    for now in range(10):
        fleet.step(now, load.seconds[now])
    fleet.scale(1, 10, by_blocks=True)
    assert len(fleet.ready(10)) == 1
    assert len(fleet.replicas) == 2
    for now in range(10, 100):
        fleet.step(now, [])
    assert len(fleet.replicas) == 1
    assert fleet.tally.finished == 40


def test_a_new_replica_counts_from_its_order_and_serves_after_a_cold_start() -> None:
    fleet = Fleet(replicas=1, cold_start=30)
    fleet.scale(2, 0, by_blocks=False)
    assert [len(fleet.ready(now)) for now in (0, 29, 30)] == [1, 1, 2]
    fleet.step(0, [])
    assert fleet.tally.replica_seconds == 2


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    assert build_load("spike x5", 1) == build_load("spike x5", 1)
    assert build_load("spike x5", 1) != build_load("spike x5", 2)


@pytest.mark.parametrize("name", SHAPES)
def test_every_load_lasts_three_hours_and_has_peaks(name: str) -> None:
    load = build_load(name, 5)
    assert len(load.seconds) == 3 * 3600
    assert load.num_requests > 10_000
    assert load.peaks >= 1


@pytest.mark.parametrize(
    ("values", "missing", "wanted"),
    [
        ([0.5, 0.5], 0, 2),  # on target
        ([0.54, 0.54], 0, 2),  # within the tolerance
        ([0.8, 0.8], 0, 4),  # 1.6 × 2, rounded up
        ([0.8, 0.8], 2, 4),  # the two that load count as 0: 0.4 turns the ratio round, so nothing
        ([0.9, 0.9], 1, 4),  # 0.6 on average of three: 1.2 × 3
        ([0.1, 0.1], 2, 3),  # the two that load count as on target: 0.6 × 4
        ([], 3, 2),  # nothing known
    ],
)
def test_the_hpa_counts_pods_without_a_figure_as_its_controller_does(
    values: list[float], missing: int, wanted: int
) -> None:
    current = len(values) + missing if values else 2
    assert per_pod(values, missing, 0.5, current) == wanted


def test_the_hpa_ignores_an_external_step_of_one_in_twelve() -> None:
    assert [external(value, 1.0, 12) for value in (13, 14, 11, 10)] == [12, 14, 12, 10]


def test_the_hpa_shrinks_to_the_most_that_was_said_in_its_window() -> None:
    behavior = Behavior(scale_down_window=60)
    said = [8, 3, 5, 2, 2, 2, 2, 2]
    assert [behavior.apply(15 * i, 8, want) for i, want in enumerate(said)][:5] == [8] * 5
    assert behavior.apply(120, 8, 2) == 2


def test_the_hpa_grows_by_four_pods_or_doubles_per_fifteen_seconds() -> None:
    behavior = Behavior()
    assert behavior.apply(0, 1, 20) == 5
    assert behavior.apply(15, 5, 20) == 10
    assert behavior.apply(30, 10, 20) == 20


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [([2], 0), ([1, 2, 3], 0), ([1, 3, 2], 1), ([1, 3, 3, 2, 4], 2), ([5, 4, 5, 4], 2)],
)
def test_direction_changes_are_counted(sizes: list[int], turns: int) -> None:
    assert count_turns(sizes) == turns


def test_a_short_burst_is_met_with_fewer_late_requests_than_by_the_default_hpa() -> None:
    calm, burst = _load(300, 1), _load(400, 8, start=300)
    load = Load("burst", [*calm.seconds[:300], *burst.seconds], peaks=1)
    ours = run(load, Ours(30), Fleet(replicas=1, cold_start=30))
    rival = run(load, PodsHpa(kv_usage, 0.8), Fleet(replicas=1, cold_start=30))
    assert ours.late < rival.late


def test_the_report_names_every_policy_and_judges_every_target() -> None:
    rows = list(contest([_load(120, 3)], POLICIES, cold_starts=[30]))
    table, targets = render_table(rows), render_targets(rows)
    assert len(table) == 2 + 1 + len(POLICIES)
    assert any(OURS in line for line in table)
    assert len(targets) == 7


def test_a_recorded_trace_is_replayed_from_its_first_arrival() -> None:
    rows = [
        {"TIMESTAMP": "2023-11-16 18:15:50.5", "ContextTokens": "44", "GeneratedTokens": "10"},
        {"TIMESTAMP": "2023-11-16 18:15:46.7", "ContextTokens": "374", "GeneratedTokens": "44"},
    ]
    load = build_trace("azure", rows)
    assert [len(second) for second in load.seconds] == [1, 0, 0, 1]
    assert (load.seconds[0][0].prompt, load.seconds[3][0].output) == (374, 10)


def test_a_trace_with_other_columns_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mine has columns a,b: expected arrived_seconds"):
        build_trace("mine", [{"a": "1", "b": "2"}])
