"""The scaling loop: asks the engines of all scaled QwenDeployments, decides, keeps the figures.

Called by `controller`; its figures are read by the metrics API. What is decided follows from
`autoscaling`, which is pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp

from qwen_operator import names
from qwen_operator.autoscaling.activity import Activity, observe_activity
from qwen_operator.autoscaling.cold_start import expected_cold_start, remember_cold_start
from qwen_operator.autoscaling.history import History
from qwen_operator.autoscaling.hpa_value import hpa_value
from qwen_operator.autoscaling.samples import Capacity, Observation, PodSample
from qwen_operator.autoscaling.signal import Signal, decide
from qwen_operator.figures import Wish
from qwen_operator.metrics_api.answers import Figure
from qwen_operator.pods import PodFacts
from qwen_operator.sampling import Sampler, Target
from qwen_operator.scaling_facts import ScalingFacts
from qwen_operator.scaling_view import ScalingView
from qwen_operator.series import OperatorSeries, ScalingState, Tally

Key = tuple[str, str]  # namespace, name
OLDEST_SECONDS = 20.0  # a figure older than that is none: whoever scales then holds


@dataclass(slots=True)
class _Scaled:
    """One QwenDeployment. `told` is what status may say, so that it is not written all the time."""

    facts: ScalingFacts
    cold_starts: tuple[float, ...]
    ever_ready: set[str]
    history: History = field(default_factory=History)
    signal: Signal | None = None
    activity: Activity | None = None
    is_mute: bool = False  # pods are ready, and none said anything that makes sense
    decided_at: float = 0.0
    decided: str = ""
    silent: int = 0
    told: ScalingView | None = None


class Scaler:
    """The decisions of all QwenDeployments that are scaled."""

    def __init__(
        self,
        clock: Callable[[], float],
        today: Callable[[], datetime],
        hear: Callable[[str, object], None] = lambda _pod, _stats: None,
    ) -> None:
        """Make one that follows nobody yet.

        Args:
            hear: told of each pod's (its uid) whole /stats, where that makes sense.
        """
        self._clock, self._today, self._hear = clock, today, hear
        self._scaled: dict[Key, _Scaled] = {}
        self._session: aiohttp.ClientSession | None = None
        self._sampler: Sampler | None = None
        self.tally = Tally()
        self.series = OperatorSeries(self.tally, self._states, self.misses)

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()

    def follow(self, key: Key, facts: ScalingFacts | None) -> None:
        """Take in how a QwenDeployment is now; None ends its scaling."""
        if facts is None:
            self._scaled.pop(key, None)
            return
        one = self._scaled.get(key)
        if one is None:
            before = _ready(facts) if facts.cold_starts else set()
            one = self._scaled[key] = _Scaled(facts, facts.cold_starts, before)
            self.tally.begin(key)
        one.facts = facts
        _measure_starts(one)

    def view(self, key: Key) -> ScalingView | None:
        """Return what status may tell; None before the first look."""
        one = self._scaled.get(key)
        if one is None or one.told is None:
            return None
        return dataclasses.replace(one.told, cold_starts=one.cold_starts)

    def figures(self) -> list[Figure]:
        """Return the figures that are recent enough to scale by."""
        now = self._clock()
        return [
            _figure(key, one, one.signal)
            for key, one in self._scaled.items()
            if one.signal is not None and now - one.decided_at < OLDEST_SECONDS
            if one.signal.replicas is not None
        ]

    def misses(self) -> Mapping[str, int]:
        """Return how many answers of engines were not used, by cause."""
        return {} if self._sampler is None else self._sampler.miss_counts

    def wish(self, namespace: str, name: str) -> Wish | None:
        """Return what KEDA is to be told of a QwenDeployment; None if nothing recent is known.

        Before the first decision, and while no pod could be asked yet, it is to stay as it is:
        KEDA calls every question that fails an error.
        """
        one = self._scaled.get((namespace, name))
        if one is None or one.is_mute:
            return None
        if one.signal is None:
            now = self._today().strftime("%Y-%m-%dT%H:%M:%SZ")
            return Wish(one.facts.replicas, one.facts.waiting or one.facts.replicas > 0, now)
        if self._clock() - one.decided_at >= OLDEST_SECONDS:
            return None
        wanted = one.facts.replicas if one.signal.replicas is None else one.signal.replicas
        is_busy = one.facts.waiting or (
            one.facts.replicas > 0
            and one.activity is not None
            and one.activity.idle_seconds(one.decided_at) <= 0
        )
        return Wish(hpa_value(wanted, one.facts.counted), is_busy, one.decided)

    async def refresh(self) -> list[Key]:
        """Ask and decide; return those for which something else is wanted, or for other reasons."""
        scaled = dict(self._scaled)
        if self._sampler is None:
            self._session = aiohttp.ClientSession()
            self._sampler = Sampler(self._session, hear=self._hear)
        pods = [pod for one in scaled.values() for pod in one.facts.pods if pod.is_ready and pod.ip]
        await self._sampler.refresh([Target(pod.uid, _url(pod)) for pod in pods])
        changed = []
        for key, one in scaled.items():
            samples = self._sampler.fresh(p.uid for p in one.facts.pods if p.is_ready)
            if self._decide(key, one, samples):
                changed.append(key)
        return changed

    def silent(self, key: Key) -> dict[str, str]:
        """Return, by name, ready pods whose figures are not used any more, and why."""
        one, sampler = self._scaled.get(key), self._sampler
        if one is None or sampler is None:
            return {}
        ready = {pod.uid: pod.name for pod in one.facts.pods if pod.is_ready}
        stale = ready.keys() - sampler.fresh(ready).keys()
        reasons = {uid: sampler.reason(uid) for uid in stale}
        return {ready[uid]: why for uid, why in reasons.items() if why is not None}

    def _states(self) -> list[ScalingState]:
        now = self._clock()
        return [
            _state(key, one, one.signal, now)
            for key, one in self._scaled.items()
            if one.signal is not None
        ]

    def tell(self) -> list[Key]:
        """Let status tell the present free ratio; return those where it is another."""
        changed = []
        for key, one in self._scaled.items():
            if one.signal is not None and (view := _view(one, one.signal)) != one.told:
                one.told = view
                changed.append(key)
        return changed

    def _decide(self, key: Key, one: _Scaled, samples: dict[str, PodSample]) -> bool:
        now, ready = self._clock(), len(_ready(one.facts))
        seen = Observation(
            at=now,
            pods=tuple(samples.values()),
            silent=ready - len(samples),
            loading=len(one.facts.pods) - ready,
            replicas=one.facts.replicas,
            capacity=_capacity(one.facts, samples.values()),
            cold_start_seconds=expected_cold_start(one.cold_starts, one.facts.planned_seconds),
        )
        one.is_mute = ready > 0 and not samples
        before = one.signal
        one.history, one.signal = decide(one.history, seen, one.facts.tuning)
        one.activity = observe_activity(one.activity, seen, waiting=one.facts.waiting)
        one.decided_at, one.decided = now, self._today().strftime("%Y-%m-%dT%H:%M:%SZ")
        one.silent = seen.silent
        if (direction := _direction(before, one.signal)) is not None:
            self.tally.decisions[key, direction, one.signal.reason] += 1
        view = _view(one, one.signal)
        is_news = one.told is None or _wish(view) != _wish(one.told)
        if is_news:
            one.told = view
        return is_news


def _direction(before: Signal | None, now: Signal) -> str | None:
    """Return which way the replicas wanted went; None if they stayed, or nothing was known."""
    if before is None or before.replicas is None or now.replicas in (None, before.replicas):
        return None
    return "up" if (now.replicas or 0) > before.replicas else "down"


def _state(key: Key, one: _Scaled, signal: Signal, now: float) -> ScalingState:
    ready = len(_ready(one.facts))
    pods = {"ready": ready, "loading": len(one.facts.pods) - ready, "silent": one.silent}
    seconds = expected_cold_start(one.cold_starts, one.facts.planned_seconds)
    age = now - one.decided_at
    return ScalingState(key, one.facts.replicas, pods, signal, seconds, age)


def _capacity(facts: ScalingFacts, samples: Collection[PodSample]) -> Capacity:
    """Return what a pod holds: as engines say, and as planned where none has spoken."""
    if not samples:
        return facts.capacity
    mean = round(sum(sample.total for sample in samples) / len(samples))
    return dataclasses.replace(facts.capacity, blocks=mean)


def _measure_starts(one: _Scaled) -> None:
    for pod in one.facts.pods:
        if pod.is_ready and pod.uid not in one.ever_ready and pod.start_seconds is not None:
            one.cold_starts = remember_cold_start(one.cold_starts, pod.start_seconds)
    there = {pod.uid for pod in one.facts.pods}
    one.ever_ready = (one.ever_ready | _ready(one.facts)) & there


def _ready(facts: ScalingFacts) -> set[str]:
    return {pod.uid for pod in facts.pods if pod.is_ready}


def _url(pod: PodFacts) -> str:
    host = f"[{pod.ip}]" if ":" in (pod.ip or "") else pod.ip
    return f"http://{host}:{names.ENGINE_PORT}/stats"


def _view(one: _Scaled, signal: Signal) -> ScalingView:
    ratio = None if signal.free_ratio is None else round(signal.free_ratio, 2)
    idle = one.activity.idle_seconds(one.decided_at) if one.activity is not None else 0.0
    is_idle = one.facts.replicas > 0 and idle >= one.facts.idle_seconds
    return ScalingView(signal.replicas, signal.reason, ratio, is_idle=is_idle)


def _wish(view: ScalingView) -> tuple[int | None, str, bool]:
    return view.replicas, view.reason, view.is_idle


def _figure(key: Key, one: _Scaled, signal: Signal) -> Figure:
    wanted = signal.replicas or 0
    return Figure(*key, hpa_value(wanted, one.facts.counted), signal.free_ratio, one.decided)
