"""All at once: forks, salts, priorities, aborts, chunks, swap; and a prefix hit at every offset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams, SchedulingParams
from tests.models.tiny import VOCAB_SIZE, build_tiny
from tests.parity.greedy import (
    NUM_TOKENS,
    Prompt,
    assert_same_ids,
    engine_config,
    load_oracle,
    make_prompts,
    run_engine,
)

PARAMS = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def folder() -> Path:
    return build_tiny("qwen3-tied")


@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_a_prefix_hit_at_every_offset_changes_no_id(folder: Path, block_size: int) -> None:
    """One prompt, and one that leaves it after each of its tokens."""
    length = 134
    [first] = make_prompts(folder, [length], shared=0)
    prompts = [first, *(leave(first, at) for at in range(length)), first]
    config = engine_config(folder, block_size=block_size, num_gpu_blocks=2048)
    answers, stats = run_engine(config, prompts, num_tokens=8)
    # All have one length: transformers says in one pass what it prefers after each token.
    told = torch.tensor(
        [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    )
    with torch.inference_mode():
        preferred = load_oracle(folder)(told).logits[:, length - 1 : -1].argmax(-1)
    assert answers == preferred.tolist()
    shared = [*range(length), length - 1]  # of the same prompt all but the last token
    assert stats.prefix_cache_hits == sum(at // block_size * block_size for at in shared)


def leave(prompt: Prompt, at: int) -> Prompt:
    """Return a prompt of the same length that has another token at `at`, and others after it."""
    source = random.Random(at)
    tail = source.choices(range(VOCAB_SIZE), k=len(prompt) - at - 1)
    return (*prompt[:at], (prompt[at] + 1) % VOCAB_SIZE, *tail)


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "chunk", "sharing"),
    [(16, 20, 48, True), (32, 11, 200, False), (64, 6, 7, True), (128, 3, 1000, True)],
)
def test_a_storm_of_everything_changes_no_id(
    folder: Path, block_size: int, num_blocks: int, chunk: int, sharing: bool
) -> None:
    config = engine_config(
        folder,
        block_size=block_size,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_blocks,  # some are swapped, some computed again
        max_num_batched_tokens=chunk,
        enable_prefix_caching=sharing,
        preemption_mode="swap",
    )
    engine = LLMEngine.from_config(config)
    prompts = make_prompts(folder, [100, 15, 64, 16, 17, 40, 2, 100], shared=48)
    asked: dict[str, Prompt] = {}
    for index, prompt in enumerate(prompts):
        for fork in range(1 + index % 3):
            name, fork_of = f"{index}-{fork}", f"{index}-0" if fork else None
            salt = "ab"[index % 2] if index > 3 else None
            scheduling = SchedulingParams(priority=index % 4, cache_salt=salt, fork_of=fork_of)
            engine.add_request(name, prompt, PARAMS, scheduling)
            asked[name] = prompt
    answers = run_and_abort(engine, asked, aborted=["1-1", "4-0", "5-2"])
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.blocks_swapped_in > 0
    assert stats.num_used_blocks == stats.num_used_swap_blocks == 0
    assert_same_ids(folder, [asked[name] for name in answers], list(answers.values()))


def run_and_abort(
    engine: LLMEngine, asked: dict[str, Prompt], *, aborted: list[str]
) -> dict[str, list[int]]:
    """Run to the end, aborting those named, one every 20 steps; return the others' ids."""
    answers: dict[str, list[int]] = {name: [] for name in asked if name not in aborted}
    num_steps = 0
    while engine.has_unfinished():
        num_steps += 1
        if num_steps % 20 == 0 and aborted:
            engine.abort(aborted.pop())
        for output in engine.step():
            if output.request_id in answers:
                answers[output.request_id] += output.token_ids
    return answers
