"""The engines: replicas with a block pool, sequence slots and a queue each, and the routing.

A replica is processor sharing in virtual time: `clock` counts the tokens that every running
sequence has decoded, so a step costs the same however many run. Blocks are counted as tokens ÷ 16
plus half a block per sequence. Full pools preempt the youngest sequence, which computes its prompt
and its tokens again, as vLLM and our engine do.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

BLOCKS, BLOCK_TOKENS, SLOTS = 8_000, 16, 64
WATERMARK = 0.01 * BLOCKS  # kept free at admission, as vLLM's scheduler does
STEP_SECONDS, STEP_SECONDS_PER_SEQUENCE = 0.030, 0.0003
PREFILL_TOKENS_PER_SECOND = 8_000
MOST_PREFILL = 0.8  # of a second; the rest decodes
PATIENCE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `draw` decides its route, the same under every policy."""

    arrived: int
    prompt: int
    output: int
    draw: tuple[float, float]


@dataclass(slots=True)
class Sequence:
    """A request on a replica: what it still has to compute."""

    request: Request
    prompt: int
    output: int
    was_admitted: bool = False


@dataclass(slots=True)
class Tally:
    """What a run counts."""

    arrived: int = 0
    finished: int = 0
    late: int = 0  # waited longer than PATIENCE_SECONDS for their first admission
    preempted: int = 0
    exhausted_seconds: float = 0.0
    replica_seconds: float = 0.0


@dataclass(slots=True)
class Replica:
    """One engine."""

    name: int
    created: int
    ready_at: int
    clock: float = 0.0
    running: list[tuple[float, int, float, Sequence]] = field(default_factory=list)
    queue: deque[Sequence] = field(default_factory=deque)
    base: float = 0.0  # Σ (prompt − clock at admission): tokens held = base + n × clock
    admitted: int = 0
    finished: int = 0
    is_draining: bool = False
    is_exhausted: bool = False
    busy_seconds: float = 0.0
    blocks_allocated: float = 0.0

    @property
    def load(self) -> int:
        """Requests present, running and waiting."""
        return len(self.running) + len(self.queue)

    @property
    def used(self) -> float:
        """Blocks held."""
        n = len(self.running)
        return (self.base + n * self.clock) / BLOCK_TOKENS + 0.5 * n

    def step(self, now: int, tally: Tally) -> None:
        """Live one second: admit, decode, end, preempt."""
        self.is_exhausted = False
        if not self.running and not self.queue:
            return
        prefill = self._admit(now, tally)
        if self.running:
            self._decode(1.0 - prefill, tally)
            while self.used > BLOCKS and len(self.running) > 1:
                self._preempt(tally)

    def _admit(self, now: int, tally: Tally) -> float:
        budget = MOST_PREFILL * PREFILL_TOKENS_PER_SECOND
        spent = 0.0
        while self.queue and len(self.running) < SLOTS and spent < budget:
            head = self.queue[0]
            need = head.prompt / BLOCK_TOKENS + 1
            if self.running and self.used + need > BLOCKS - WATERMARK:
                self.is_exhausted = True
                break
            self.queue.popleft()
            spent += head.prompt
            self._start(head, now, tally)
        return min(spent / PREFILL_TOKENS_PER_SECOND, MOST_PREFILL)

    def _start(self, head: Sequence, now: int, tally: Tally) -> None:
        if not head.was_admitted:
            head.was_admitted = True
            tally.late += now - head.request.arrived > PATIENCE_SECONDS
        self.admitted += 1
        self.blocks_allocated += head.prompt / BLOCK_TOKENS
        self.base += head.prompt - self.clock
        heapq.heappush(self.running, (self.clock + head.output, self.admitted, self.clock, head))

    def _decode(self, share: float, tally: Tally) -> None:
        n = len(self.running)
        tokens = share / (STEP_SECONDS + STEP_SECONDS_PER_SEQUENCE * n)
        self.clock += tokens
        self.busy_seconds += 1
        self.blocks_allocated += n * tokens / BLOCK_TOKENS
        while self.running and self.running[0][0] <= self.clock:
            _, _, start, done = heapq.heappop(self.running)
            self.base -= done.prompt - start
            self.finished += 1
            tally.finished += 1

    def _preempt(self, tally: Tally) -> None:
        youngest = max(self.running, key=lambda entry: entry[1])
        self.running.remove(youngest)
        heapq.heapify(self.running)
        end, _, start, sequence = youngest
        self.base -= sequence.prompt - start
        decoded = int(self.clock - start)
        sequence.prompt, sequence.output = sequence.prompt + decoded, max(1, int(end - self.clock))
        self.queue.appendleft(sequence)
        tally.preempted += 1
        self.is_exhausted = True


class Fleet:
    """Replicas behind a gateway that picks the less loaded of two at random (Envoy's default for
    least request), or any at random (kube-proxy). What is queued at a replica stays there."""

    def __init__(self, *, replicas: int, cold_start: int, router: str = "two") -> None:
        self.cold_start, self.router = cold_start, router
        self.replicas = [Replica(i, -cold_start, 0) for i in range(replicas)]
        self.tally = Tally()
        self._named = replicas

    @property
    def wanted(self) -> int:
        """Replicas that are to stay, ready or not."""
        return sum(not r.is_draining for r in self.replicas)

    def ready(self, now: int) -> list[Replica]:
        """Replicas that take new requests."""
        return [r for r in self.replicas if r.ready_at <= now and not r.is_draining]

    def loading(self, now: int) -> list[Replica]:
        """Replicas that are not ready yet."""
        return [r for r in self.replicas if r.ready_at > now]

    def scale(self, wanted: int, now: int, *, by_blocks: bool) -> None:
        """Create replicas, or end some: loading ones first, then the emptiest or the newest."""
        for _ in range(wanted - self.wanted):
            self.replicas.append(Replica(self._named, now, now + self.cold_start))
            self._named += 1
        for _ in range(self.wanted - wanted):
            self._end(now, by_blocks)

    def _end(self, now: int, by_blocks: bool) -> None:
        if loading := self.loading(now):
            self.replicas.remove(loading[-1])
            return
        ready = self.ready(now)
        victim = min(ready, key=lambda r: r.used) if by_blocks else ready[-1]
        victim.is_draining = True

    def step(self, now: int, arrivals: list[Request]) -> None:
        """Live one second."""
        ready = self.ready(now)
        for request in arrivals:
            self._route(request, ready).queue.append(
                Sequence(request, request.prompt, request.output)
            )
        self.tally.arrived += len(arrivals)
        present = affected = 0
        for replica in self.replicas:
            replica.step(now, self.tally)
            present += replica.load
            affected += replica.load if replica.is_exhausted else 0
        self.tally.exhausted_seconds += affected / present if present else 0.0
        self.tally.replica_seconds += len(self.replicas)
        if any(r.is_draining and not r.load for r in self.replicas):
            self.replicas = [r for r in self.replicas if r.load or not r.is_draining]

    def _route(self, request: Request, ready: list[Replica]) -> Replica:
        first = ready[int(request.draw[0] * len(ready))]
        if self.router == "random":
            return first
        second = ready[int(request.draw[1] * len(ready))]
        return first if first.load <= second.load else second

    def close(self, now: int) -> None:
        """Count those who still wait for their first admission."""
        for replica in self.replicas:
            for waiting in replica.queue:
                waited = now - waiting.request.arrived
                self.tally.late += not waiting.was_admitted and waited > PATIENCE_SECONDS
