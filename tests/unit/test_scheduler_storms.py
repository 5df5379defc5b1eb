"""Whatever arrives, is aborted, fails or lacks room: every sequence ends and no block is lost."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from qwen_engine.preemption import NO_COSTS, PreemptionCosts, PreemptionPolicy
from qwen_engine.sequence import SchedulingParams, Sequence
from tests.unit.scheduler_machine import SWAP, Machine, make_machine

_requests = st.lists(
    st.tuples(
        st.integers(3, 20),  # prompt tokens
        st.integers(4, 20),  # output tokens
        st.integers(0, 15).map(lambda step: max(0, step - 6)),  # the step it arrives at
        st.integers(0, 2),  # which of three prefixes it shares
        st.integers(-1, 1),  # priority
        st.integers(0, 2),  # forks of it
        st.sampled_from([None, None, 5, 12]),  # aborted so many steps after it arrived
    ),
    min_size=5,
    max_size=10,
)


@settings(max_examples=200)
@given(
    requests=_requests,
    pools=st.tuples(st.integers(0, 8), st.sampled_from([3, 40, 40])),  # device: beyond one request
    block_size=st.sampled_from([4, 1, 16]),
    budget=st.sampled_from([1000, 16, 3, 1]),
    mode=st.sampled_from(["swap", "swap", "recompute", "mixed"]),
    sharing=st.booleans(),
    fails_at=st.sampled_from([None, 3, 17]),
    watermark=st.sampled_from([0, 0, 2]),
)
def test_every_request_ends_and_reads_what_it_wrote_whatever_happens(
    requests: list[tuple[int, int, int, int, int, int, int | None]],
    pools: tuple[int, int],
    block_size: int,
    budget: int,
    mode: str,
    sharing: bool,
    fails_at: int | None,
    watermark: int,
) -> None:
    policy = {
        "swap": SWAP,
        "recompute": PreemptionPolicy("recompute", NO_COSTS),
        # swaps up to 12 tokens in blocks of 4: victims of both kinds in one run
        "mixed": PreemptionPolicy("auto", PreemptionCosts(0.5, 0.3)),
    }[mode]
    machine = make_machine(
        -(-40 // block_size) + pools[0],
        pools[1],
        block_size=block_size,
        budget=budget,
        policy=policy,
        sharing=sharing,
    )
    scheduler = machine.scheduler
    scheduler._watermark = watermark  # as in a pool of 100 times as many blocks
    aborts: dict[int, list[Sequence]] = {}
    work = sum((-(-(p + o) // budget) + 2 * (p + o)) * (1 + f) for p, o, *_, f, _ in requests)
    for step in range(16 + work * 4):
        for num_prompt, num_output, arrival, kind, priority, num_forks, abort in requests:
            if arrival != step:
                continue
            prompt = [kind * 100 + i for i in range(num_prompt)]
            scheduling = SchedulingParams(priority=priority, cache_salt=[None, "a"][kind == 2])
            settings_ = {"max_tokens": num_output, "scheduling": scheduling}
            parent = machine.add(prompt, **settings_)
            family = [parent, *(machine.add(prompt, parent=parent, **settings_)
                                for _ in range(num_forks))]  # fmt: skip
            if abort is not None:
                aborts.setdefault(step + abort, []).extend(family)
        for sequence in aborts.get(step, []):
            if sequence in machine.live:
                machine.abort(sequence)
                machine.check()
        if step == fails_at:
            fail_a_step(machine)
        batch = machine.step(token_id=step)
        assert sum(entry.num_tokens for entry in batch.entries) <= budget
        assert not (batch.copies.swap_outs and batch.copies.swap_ins)
        if step > 15 and not machine.live:
            break
    assert not machine.live, "starved"
    event(f"swapped in: {scheduler.blocks.num_swapped_in_ever > 0}")
    event(f"preempted: {scheduler.num_preemptions > 0}")
    assert scheduler.blocks.pool.num_used == scheduler.blocks.swap_pool.num_used == 0


def fail_a_step(machine: Machine) -> None:
    """The worker raises before it has done anything, and memory holds nothing to rely on."""
    machine.scheduler.schedule()
    for sequence in machine.scheduler.abort_running():
        machine.live.remove(sequence)
    machine.device.clear()
    machine.swap.clear()
    machine.check()
