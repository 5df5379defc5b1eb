"""The scaling decision, case by case. Pools of 1,000 blocks and 50 sequences; a look each 5 s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from qwen_operator.autoscaling.history import History
from qwen_operator.autoscaling.hpa_value import hpa_value
from qwen_operator.autoscaling.samples import Capacity, Observation, PodSample
from qwen_operator.autoscaling.signal import Signal, decide, look_back_seconds
from qwen_operator.autoscaling.tuning import DEFAULT_TUNING, Tuning

CAPACITY = Capacity(blocks=1000, sequences=50)
Scene = Callable[[float], Observation]


def _pod(name: str, used: int, **figures: int) -> PodSample:
    figures = {"running": used // 50, "waiting": 0, "swapped": 0, "cached": 0, **figures}
    figures = {"allocated": used, "freed": 0, **figures}
    return PodSample(pod=name, total=1000, free=1000 - used, used=used, **figures)


def _seen(at: float, used: Sequence[int], **changed: object) -> Observation:
    pods = tuple(_pod(f"pod-{i}", blocks) for i, blocks in enumerate(used))
    seen = Observation(
        at=at, pods=pods, silent=0, loading=0, replicas=len(used), capacity=CAPACITY,
        cold_start_seconds=60.0,
    )  # fmt: skip
    return replace(seen, **changed)  # type: ignore[arg-type]


def _watch(scene: Scene, seconds: int, history: History | None = None) -> tuple[History, Signal]:
    history = history or History()
    start = 0.0 if history.since is None else history.now.at + 5
    for step in range(seconds // 5 + 1):
        history, signal = decide(history, scene(start + 5.0 * step))
    return history, signal


def _steady(used: Sequence[int], **changed: object) -> Scene:
    return lambda at: _seen(at, used, **changed)


@pytest.mark.parametrize(
    ("used", "replicas", "reason"),
    [
        ([0, 0], 1, "BlocksSpare"),
        ([50, 50], 1, "BlocksSpare"),
        ([300, 300, 300], 3, "Enough"),
        ([500, 500], 3, "BlocksNeeded"),
        ([900, 900], 4, "BlocksNeeded"),
        ([1000, 1000, 1000], 6, "BlocksNeeded"),
        ([100] * 10, 4, "BlocksSpare"),
    ],
)
def test_a_steady_load_gets_the_replicas_that_leave_the_target_free(
    used: list[int], replicas: int, reason: str
) -> None:
    _, signal = _watch(_steady(used), 1000)
    assert (signal.replicas, signal.reason) == (replicas, reason)


def test_sums_the_fullest_pod_and_what_is_cached_are_told() -> None:
    pods = (_pod("a", 700, cached=100, waiting=3), _pod("b", 100, cached=900, swapped=2))
    _, signal = _watch(_steady([0, 0], pods=pods), 60)
    assert (signal.total, signal.free, signal.used, signal.cached) == (2000, 1200, 800, 1000)
    assert (signal.worst_free, signal.free_ratio) == (300, 0.6)
    assert (signal.waiting, signal.swapped) == (3, 2)


def test_cached_blocks_are_free() -> None:
    pods = (_pod("a", 100, cached=900),)
    _, signal = _watch(_steady([0], pods=pods), 1200)
    assert signal.replicas == 1


def test_loading_pods_count_as_capacity_with_their_planned_blocks() -> None:
    _, signal = _watch(_steady([800], loading=3, replicas=4), 60)
    assert signal.free_ratio == (200 + 3000) / 4000
    assert (signal.replicas, signal.reason) == (4, "PodsLoading")


def test_time_to_exhaustion_is_free_blocks_by_net_rate_and_none_where_none_is_taken() -> None:
    def scene(at: float) -> Observation:
        pod = _pod(
            "a", int(100 + 2 * at), running=5, allocated=int(500 + 5 * at), freed=int(3 * at)
        )
        return _seen(at, [0], pods=(pod,))

    _, signal = _watch(scene, 100)
    assert signal.net_blocks_per_second == pytest.approx(2.0)
    assert signal.seconds_to_exhaustion == pytest.approx(700 / 2)
    _, still = _watch(_steady([500]), 60)
    assert still.seconds_to_exhaustion is None


def test_growth_is_met_before_it_arrives() -> None:
    def growing(at: float) -> Observation:
        used = int(100 + 7 * max(0.0, at - 210))
        return _seen(at, [used] * 2, cold_start_seconds=120.0)

    _, grown = _watch(growing, 300)
    _, still = _watch(_steady([730, 730], cold_start_seconds=120.0), 300)
    assert (still.replicas, grown.replicas) == (4, 5)
    assert grown.needed <= still.needed * (1 + DEFAULT_TUNING.growth_cap)


def test_growth_that_may_be_noise_is_left_to_the_headroom() -> None:
    def wavering(at: float) -> Observation:
        return _seen(at, [400 if at < 240 else 500] * 2)

    _, wavered = _watch(wavering, 300)
    _, still = _watch(_steady([500, 500]), 300)
    assert wavered.needed == still.needed


def test_a_longer_cold_start_asks_for_more_of_the_same_growth() -> None:
    def scene(cold: float) -> Scene:
        return lambda at: _seen(at, [int(200 + at / 2)] * 4, cold_start_seconds=cold)

    needed = [_watch(scene(cold), 300)[1].needed for cold in (30.0, 120.0, 600.0)]
    assert needed == sorted(needed)
    assert needed[0] < needed[2]


def test_arrivals_are_met_before_they_hold_anything() -> None:
    """Ten a second instead of one: the pool is as it was, the counters tell."""

    def scene(at: float) -> Observation:
        come = at if at < 400 else 400 + 10 * (at - 400)
        pod = _pod("a", 450, running=15, finished=int(come))
        return _seen(at, [0], pods=(pod,))

    history, before = _watch(scene, 390)
    _, after = _watch(scene, 30, history)
    assert before.replicas == 2
    assert after.replicas is not None
    assert after.replicas >= 3


def test_a_queue_counts_where_arrivals_are_not_known() -> None:
    pods = (_pod("a", 600, running=30, waiting=20),)
    _, signal = _watch(_steady([0], pods=pods), 60)
    assert signal.reason == "BlocksNeeded"


def test_a_request_that_has_just_come_to_an_idle_pod_is_no_queue() -> None:
    pods = (_pod("a", 0, waiting=1), _pod("b", 0))
    _, signal = _watch(_steady([0, 0], pods=pods), 660)
    assert (signal.replicas, signal.reason) == (1, "BlocksSpare")


def test_slots_run_out_as_blocks_do() -> None:
    pods = tuple(_pod(f"p{i}", 100, running=50) for i in range(2))
    _, full = _watch(_steady([0, 0], pods=pods), 60)
    _, few = _watch(_steady([100, 100]), 60)
    assert (full.replicas, few.replicas) == (4, 2)


def test_scale_in_waits_for_ten_minutes_of_less() -> None:
    history, _ = _watch(_steady([600] * 5), 1000)
    history, soon = _watch(_steady([40] * 5), 550, history)
    _, later = _watch(_steady([40] * 5), 150, history)
    assert (soon.replicas, later.replicas) == (5, 2)


def test_a_need_that_one_look_alone_saw_does_not_stop_a_scale_in() -> None:
    def scene(looks: int) -> Scene:
        seen = range(300, 300 + 5 * looks, 5)
        return lambda at: _seen(at, [600 if int(at) in seen else 100] * 5)

    _, once = _watch(scene(1), 700)
    _, twice = _watch(scene(2), 700)
    assert (once.replicas, twice.replicas) == (3, 5)


def test_a_scale_in_leaves_a_third_more_of_a_small_need_and_less_of_a_large_one() -> None:
    assert DEFAULT_TUNING.scale_in_spare(2.0) == pytest.approx(0.6)
    assert DEFAULT_TUNING.scale_in_spare(9.0) == pytest.approx(2.1)


@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.37, 0.5])
def test_the_free_ratio_holds_at_five_replicas(ratio: float) -> None:
    tuning = Tuning(free_ratio=ratio)
    held = 5 * (1 - ratio) / tuning.block_fill
    assert tuning.with_headroom(held, 45.0) == pytest.approx(5.0)
    assert tuning.with_headroom(held / 5, 45.0) >= 1.0
    assert tuning.with_headroom(held * 5, 45.0) <= 25.0


def test_headroom_is_a_number_of_replicas_and_not_a_share() -> None:
    spare = [DEFAULT_TUNING.with_headroom(full, 45.0) - full for full in (1.0, 4.0, 20.0)]
    assert spare == pytest.approx([spare[0]] * 3)
    assert 1 < spare[0] < 2
    assert DEFAULT_TUNING.with_headroom(0.0, 45.0) == 0.0
    assert DEFAULT_TUNING.with_headroom(0.1, 45.0) < 1.0


def test_a_longer_cold_start_keeps_more_replicas_ready() -> None:
    _, short = _watch(_steady([600] * 4, cold_start_seconds=30.0), 60)
    _, long = _watch(_steady([600] * 4, cold_start_seconds=600.0), 60)
    assert (short.replicas, long.replicas) == (4, 6)


def test_a_queue_is_spread_over_the_time_that_a_replica_takes() -> None:
    def scene(waiting: int) -> Scene:
        def seen(at: float) -> Observation:
            pod = _pod("a", 900, running=20, finished=int(at), waiting=waiting)
            return _seen(at, [0], pods=(pod,))

        return seen

    few, many = (_watch(scene(waiting), 200)[1].demand.arriving for waiting in (0, 150))
    # 150 requests of 20 s of sequence each, over 75 s, in 50 slots
    assert many.slots - few.slots == pytest.approx(150 * 20 / 75 / 50, rel=0.1)


def test_an_operator_that_has_just_started_scales_out_but_not_in() -> None:
    _, full = _watch(_steady([990, 990]), 30)
    _, empty = _watch(_steady([0, 0]), 550)
    assert full.reason == "BlocksNeeded"
    assert (empty.replicas, empty.reason) == (2, "LookingBack")


def test_a_scale_in_that_had_to_be_taken_back_makes_the_next_wait_longer() -> None:
    history, _ = _watch(_steady([600] * 4), 1000)
    history, _ = _watch(_steady([100] * 2), 300, history)  # scaled in
    history, _ = _watch(_steady([600] * 4), 300, history)  # and out again
    _, held = _watch(_steady([100] * 4), 1200, history)
    assert held.replicas == 4
    assert history.regretted_at is not None


def test_a_scale_in_that_was_taken_back_is_remembered_for_hours() -> None:
    tuning = DEFAULT_TUNING
    history, _ = _watch(_steady([600] * 4), 1000)
    history, _ = _watch(_steady([100] * 2), 300, history)
    history, _ = _watch(_steady([600] * 4), 300, history)
    assert look_back_seconds(history, tuning) == 6 * tuning.look_back_seconds
    history, _ = _watch(_steady([600] * 4), 3 * 3600, history)
    assert look_back_seconds(history, tuning) == tuning.look_back_seconds


def test_silent_pods_stop_scale_in_and_not_scale_out() -> None:
    _, quiet = _watch(_steady([0], silent=1, replicas=2), 1200)
    _, busy = _watch(_steady([990, 990, 990], silent=1, replicas=4), 60)
    assert (quiet.replicas, quiet.reason) == (2, "PodsSilent")
    assert busy.replicas is not None
    assert busy.replicas > 4


def test_without_any_figure_nothing_is_wanted() -> None:
    _, signal = _watch(_steady([], silent=3, replicas=3), 900)
    assert (signal.replicas, signal.free_ratio, signal.reason) == (None, None, "NothingKnown")


def test_a_clock_that_goes_back_starts_anew_and_scales_nothing() -> None:
    history, _ = _watch(_steady([100] * 3), 590)
    history, signal = decide(history, _seen(10.0, [100] * 3))
    assert len(history.frames) == 1
    assert signal.replicas == 3


def test_an_engine_that_restarts_is_no_arrival() -> None:
    def scene(at: float) -> Observation:
        age = at if at < 300 else at - 300
        return _seen(at, [0], pods=(_pod("a", 200, finished=int(age), allocated=int(9 * age)),))

    history, _ = _watch(scene, 295)
    history, signal = decide(history, scene(300.0))
    assert history.now.finished_ever == 295
    assert signal.replicas == 1


def test_the_past_that_is_kept_is_bounded() -> None:
    history, _ = _watch(_steady([300]), 3 * 3600)
    assert len(history.frames) <= 130
    assert len(history.needs) <= 125


@pytest.mark.parametrize(
    ("wanted", "replicas", "said"),
    [(3, 2, 3), (2, 3, 2), (13, 12, 14), (14, 12, 14), (11, 12, 11), (12, 12, 12), (31, 30, 34)],
)
def test_the_hpa_is_told_what_it_does_not_overlook(wanted: int, replicas: int, said: int) -> None:
    assert hpa_value(wanted, replicas) == said
    if wanted > replicas:
        assert said / replicas > 1.1
