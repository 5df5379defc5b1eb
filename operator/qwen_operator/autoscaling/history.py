"""What is kept of a deployment's past: minutes of frames, needs for longer, the turns.

Immutable: `observe` and `remember_need` return the next history. It is lost with the operator; a
new one holds the size until it has looked long enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qwen_operator.autoscaling.frames import Frame, first_frame, next_frame
from qwen_operator.autoscaling.samples import Observation, PodSample

FRAMES_SECONDS = 630.0  # the longest window, and some
NEEDS_SECONDS = 3600.0
REGRET_SECONDS = 2400.0  # a scale-out so soon after a scale-in takes it back
REGRET_KEPT_SECONDS = 3 * 3600.0
_BUCKET_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class History:
    """A deployment's past, oldest first.

    Attributes:
        needs: of each half minute, its start and the largest need in replicas that two looks saw.
        pods: the latest sample of each pod.
        since: when watching began.
        grew_at, shrunk_at: when the deployment was last scaled out, and in if not taken back since.
        regretted_at: when a scale-in was last taken back.
    """

    frames: tuple[Frame, ...] = ()
    needs: tuple[tuple[float, float], ...] = ()
    pods: Mapping[str, PodSample] = field(default_factory=dict)
    since: float | None = None
    grew_at: float | None = None
    shrunk_at: float | None = None
    regretted_at: float | None = None

    @property
    def now(self) -> Frame:
        """The newest frame."""
        return self.frames[-1]

    def before(self, seconds: float) -> Frame:
        """Return the newest frame at least so old, or the oldest there is."""
        limit = self.now.at - seconds
        older = (frame for frame in reversed(self.frames) if frame.at <= limit)
        return next(older, self.frames[0])

    def peak(self, seconds: float) -> float:
        """Return the largest need of the last so many seconds."""
        start = self.now.at - seconds - _BUCKET_SECONDS
        return max((need for at, need in self.needs if at > start), default=0.0)


def observe(history: History, seen: Observation) -> History:
    """Add an observation. A clock that went back starts the history anew."""
    last = history.frames[-1] if history.frames else None
    if last is not None and seen.at <= last.at:
        return observe(History(), seen)
    frame = first_frame(seen) if last is None else next_frame(last, history.pods, seen)
    kept = tuple(f for f in history.frames if f.at > seen.at - FRAMES_SECONDS)
    return replace(
        history if last is None else _remember_turn(history, last, seen),
        frames=(*kept, frame),
        pods={pod.pod: pod for pod in seen.pods},
        since=seen.at if history.since is None else history.since,
    )


def remember_level(history: History, level: float) -> History:
    """Write the demand into the newest frame."""
    return replace(history, frames=(*history.frames[:-1], replace(history.now, level=level)))


def remember_need(history: History, replicas: float) -> History:
    """Remember what was needed."""
    at = history.now.at
    start = at // _BUCKET_SECONDS * _BUCKET_SECONDS
    kept = tuple(need for need in history.needs if need[0] > at - NEEDS_SECONDS - _BUCKET_SECONDS)
    if kept and kept[-1][0] == start:
        return replace(history, needs=(*kept[:-1], (start, max(kept[-1][1], replicas))))
    return replace(history, needs=(*kept, (start, replicas)))


def _remember_turn(history: History, last: Frame, seen: Observation) -> History:
    if seen.replicas == last.replicas:
        return history
    if seen.replicas < last.replicas:
        return replace(history, shrunk_at=seen.at)
    grown, shrunk_at = replace(history, grew_at=seen.at), history.shrunk_at
    if shrunk_at is None or seen.at - shrunk_at > REGRET_SECONDS:
        return grown
    return replace(grown, shrunk_at=None, regretted_at=seen.at)
