"""A deployment's sums at one moment, and its counters added up over pods that come and go.

Counters are added up as differences between two looks at the same pod, so that sums never go back
when a pod restarts or leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qwen_operator.autoscaling.samples import Observation, PodSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Sums over the pods with fresh figures; `*_ever` only grow while they are watched.

    Attributes:
        waiting: requests without blocks, waiting or swapped out.
        is_counted: every engine counts finished requests, so arrivals are known.
        level: the demand in replicas, as judged then.
    """

    at: float
    replicas: int
    used: int
    running: int
    waiting: int
    is_counted: bool = False
    level: float = 0.0
    arrived_ever: int = 0
    finished_ever: int = 0
    net_blocks_ever: int = 0
    block_seconds_ever: float = 0.0
    sequence_seconds_ever: float = 0.0


def first_frame(seen: Observation) -> Frame:
    """Return the frame of an observation before which nothing is known."""
    pods = seen.pods
    return Frame(
        at=seen.at,
        replicas=seen.replicas,
        used=sum(pod.used for pod in pods),
        running=sum(pod.running for pod in pods),
        waiting=sum(pod.waiting + pod.swapped for pod in pods),
        is_counted=bool(pods) and all(pod.finished is not None for pod in pods),
    )


def next_frame(last: Frame, before: Mapping[str, PodSample], seen: Observation) -> Frame:
    """Return the frame that follows `last`, in which the pods were as `before`."""
    frame, seconds = first_frame(seen), seen.at - last.at
    pairs = [(before[pod.pod], pod) for pod in seen.pods if pod.pod in before]
    pairs = [(was, now) for was, now in pairs if not _is_restarted(was, now)]
    finished = sum(_finished(was, now) for was, now in pairs)
    more_present = sum(now.present - was.present for was, now in pairs if now.finished is not None)
    return replace(
        frame,
        arrived_ever=last.arrived_ever + max(0, finished + more_present),
        finished_ever=last.finished_ever + finished,
        net_blocks_ever=last.net_blocks_ever + sum(_net(was, now) for was, now in pairs),
        block_seconds_ever=last.block_seconds_ever + seconds * (frame.used + last.used) / 2,
        sequence_seconds_ever=last.sequence_seconds_ever
        + seconds * (frame.running + last.running) / 2,
    )


def _is_restarted(was: PodSample, now: PodSample) -> bool:
    return now.allocated < was.allocated or (now.finished or 0) < (was.finished or 0)


def _finished(was: PodSample, now: PodSample) -> int:
    return 0 if was.finished is None or now.finished is None else now.finished - was.finished


def _net(was: PodSample, now: PodSample) -> int:
    return (now.allocated - was.allocated) - (now.freed - was.freed)
