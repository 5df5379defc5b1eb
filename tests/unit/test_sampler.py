"""The sampler against a slow reference written from vLLM's semantics, one row at a time."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from qwen_engine import sampler as sampler_module
from qwen_engine.sampler import Sampler
from qwen_engine.sequence import SamplingParams, Sequence

EOS = 1
_ids = count()


def make_sequence(
    prompt: list[int] | None = None, output: list[int] | None = None, **params: Any
) -> Sequence:
    prompt = prompt or [0]
    return Sequence(
        request_id=str(next(_ids)),
        token_ids=prompt + (output or []),
        num_prompt_tokens=len(prompt),
        max_num_tokens=1000,
        params=SamplingParams(max_tokens=params.pop("max_tokens", 500), **params),
    )


def make_sampler(seed: int = 0) -> Sampler:
    return Sampler(seed=seed, eos_token_ids=frozenset({EOS}), device=torch.device("cpu"))


def make_logits(*rows: int, vocab_size: int = 40, scale: float = 2.0) -> torch.Tensor:
    return torch.stack(
        [
            torch.randn(vocab_size, generator=torch.Generator().manual_seed(row)) * scale
            for row in rows
        ]
    )


def expected_probs(logits: torch.Tensor, sequence: Sequence) -> np.ndarray:
    """Return the distribution that vLLM would draw from."""
    params = sequence.params
    scores = logits.double().numpy().copy()
    output = sequence.token_ids[sequence.num_prompt_tokens :]
    for token_id in set(sequence.token_ids):
        factor = params.repetition_penalty
        scores[token_id] *= factor if scores[token_id] <= 0 else 1 / factor
    for token_id, times in Counter(output).items():
        scores[token_id] -= params.frequency_penalty * times + params.presence_penalty
    if len(output) < params.min_tokens:
        for token_id in (EOS, *params.stop_token_ids):
            scores[token_id] = -np.inf
    if params.is_greedy:
        return np.eye(len(scores))[scores.argmax()]
    probs = softmax(scores / params.temperature)
    probs[probs < params.min_p * probs.max()] = 0
    order = np.argsort(-probs, kind="stable")
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.top_p]] = 0
    return probs / probs.sum()


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k 1": {"top_k": 1},
    "top_k 5": {"top_k": 5},
    "top_k beyond the vocabulary": {"top_k": 10_000},
    "top_k -1 is off": {"top_k": -1},
    "top_p": {"top_p": 0.6},
    "top_p tiny keeps the best": {"top_p": 1e-9},
    "min_p": {"min_p": 0.1},
    "min_p 1 keeps the best": {"min_p": 1.0},
    "all cuts": {"temperature": 1.5, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.8, "top_k": 9},
    "all penalties": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "repetition_penalty": 0.6,
    },
    "min_tokens": {"min_tokens": 10, "stop_token_ids": frozenset({3, 4})},
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 5.0},
    "greedy with min_tokens": {"temperature": 0.0, "min_tokens": 10},
}

NUM_DRAWS = 4000


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_reference_distribution(name: str) -> None:
    logits = make_logits(7)
    logits[0, EOS] = 8.0  # likely, so that masking it shows
    sequence = make_sequence([2, 3, 5], [5, 5, 9], **CASES[name])
    probs = expected_probs(logits[0], sequence)
    drawn = make_sampler().sample(logits.repeat(NUM_DRAWS, 1), [sequence] * NUM_DRAWS)
    seen = np.bincount(drawn, minlength=len(probs)) / NUM_DRAWS
    assert seen[probs == 0].sum() == 0, "a token that was cut was drawn"
    deviation = np.sqrt(probs * (1 - probs) / NUM_DRAWS)
    assert (np.abs(seen - probs) <= 5 * deviation + 1e-9).all()


def test_rows_with_different_parameters_do_not_mix() -> None:
    names = list(CASES)
    sequences = [make_sequence([2, 3, 5], [5, 5, 9], seed=11, **CASES[name]) for name in names]
    logits = make_logits(*range(len(names)))
    together = make_sampler().sample(logits.clone(), sequences)
    alone = [
        make_sampler().sample(logits[row : row + 1].clone(), [sequence])[0]
        for row, sequence in enumerate(sequences)
    ]
    assert together == alone


def test_a_seed_gives_the_same_tokens_beside_any_neighbours() -> None:
    def draw(neighbours: int, engine_seed: int) -> list[int]:
        sampler = make_sampler(engine_seed)
        mine = make_sequence(seed=42, temperature=1.3)
        others = [make_sequence(temperature=0.9, top_k=3) for _ in range(neighbours)]
        for position in range(20):
            logits = make_logits(position, *range(100, 100 + neighbours))
            mine.token_ids.append(sampler.sample(logits, [mine, *others])[0])
        return mine.token_ids

    assert draw(0, 0) == draw(5, 1)
    assert len(set(draw(0, 0))) > 5


def test_different_seeds_and_no_seed_give_different_tokens() -> None:
    logits = make_logits(1, scale=0.1, vocab_size=4000)
    seeded = [make_sequence(seed=seed) for seed in (0, 1, -5, 2**70)]
    free = [make_sequence() for _ in range(4)]
    drawn = make_sampler().sample(logits.repeat(8, 1), [*seeded, *free])
    assert len(set(drawn)) == 8


def test_the_engine_seed_repeats_a_whole_run() -> None:
    logits = make_logits(1, 2, 3, scale=0.1)
    sequences = [make_sequence() for _ in range(3)]
    first = make_sampler(5).sample(logits.clone(), sequences)
    assert make_sampler(5).sample(logits.clone(), sequences) == first


def test_a_flat_distribution_is_cut_beyond_the_candidates() -> None:
    vocab_size = 4 * sampler_module.NUM_CANDIDATES
    logits = make_logits(3, vocab_size=vocab_size, scale=0.01)
    sequence = make_sequence(top_p=0.5)
    probs = expected_probs(logits[0], sequence)
    num_draws = 300
    sequences = [sequence] * num_draws + [make_sequence(top_p=0.001)]
    drawn = make_sampler().sample(logits.repeat(num_draws + 1, 1), sequences)
    assert (probs[drawn[:num_draws]] > 0).mean() > 0.99  # float32 may differ at the very cut
    ranks = (-logits[0]).argsort().argsort()
    assert max(ranks[token_id] for token_id in drawn[:num_draws]) > sampler_module.NUM_CANDIDATES


def test_bfloat16_logits_are_drawn_in_float32() -> None:
    logits = make_logits(5).bfloat16()
    sequence = make_sequence(temperature=0.7, top_p=0.9, seed=3)
    in_float = make_sampler().sample(logits.float(), [sequence])
    assert make_sampler().sample(logits.clone(), [sequence]) == in_float


def test_penalties_follow_a_growing_output() -> None:
    sampler = make_sampler()
    sequence = make_sequence([2], temperature=0.0, presence_penalty=2.0)
    logits = torch.tensor([[0.0, 0.0, 3.0, 2.5, 1.2]])
    for _ in range(4):
        sequence.token_ids.append(sampler.sample(logits.clone(), [sequence])[0])
    # presence counts output only: 2 is first choice although it is in the prompt
    assert sequence.token_ids == [2, 2, 3, 4, 2]


def test_stops_are_masked_only_until_min_tokens() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    sampler = make_sampler()
    early = make_sequence(output=[0], temperature=0.0, min_tokens=2)
    late = make_sequence(output=[0, 0], temperature=0.0, min_tokens=2)
    assert sampler.sample(logits.repeat(2, 1), [early, late]) == [2, EOS]


def test_logits_that_are_not_numbers_give_some_token_not_a_crash() -> None:
    logits = torch.full((2, 10), torch.nan)
    sequences = [make_sequence(temperature=1.0), make_sequence(temperature=1.0, top_p=0.5)]
    drawn = make_sampler().sample(logits, sequences)
    assert all(0 <= token_id < 10 for token_id in drawn)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
    ],
)
def test_parameters_out_of_range_are_named(field: str, value: float) -> None:
    from qwen_engine.errors import InvalidRequestError

    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{"max_tokens": 5, field: value})
    assert caught.value.param == field


def test_a_bias_is_added_before_anything_else_and_to_its_row_only() -> None:
    logits = make_logits(1, 1)
    best, second = logits[0].topk(2).indices.tolist()
    biased = make_sequence(temperature=0.0, logit_bias=((best, -50.0),))
    plain = make_sequence(temperature=0.0)
    assert make_sampler().sample(logits, [biased, plain]) == [second, best]


def test_logprobs_are_of_the_raw_logits_and_only_for_who_asked() -> None:
    logits = make_logits(1, 2)
    raw = logits[0].log_softmax(-1)
    asked = make_sequence(temperature=0.7, seed=1, logprobs=2, logit_bias=((3, 100.0),))
    silent = make_sequence(temperature=0.0)
    make_sampler().sample(logits, [asked, silent])
    found = asked.last_logprobs
    assert found is not None
    assert silent.last_logprobs is None
    assert found.token_id == 3
    assert found.logprob == pytest.approx(raw[3].item(), abs=1e-5)
    assert found.rank == (raw > raw[3]).sum().item() + 1
    assert [token for token, _ in found.top] == raw.topk(2).indices.tolist()


class OnlyTokens:
    """A constraint that allows some tokens, and notes what was chosen."""

    def __init__(self, *token_ids: int, vocab_size: int = 40) -> None:
        mask = bytearray(-(-vocab_size // 32) * 4)
        for token_id in token_ids:
            mask[token_id >> 3] |= 1 << (token_id & 7)
        self._mask = bytes(mask)
        self.accepted: list[int] = []

    def allowed(self) -> bytes | None:
        return self._mask if len(self.accepted) < 3 else None

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def test_a_constraint_holds_for_its_row_only_and_learns_what_was_chosen() -> None:
    drawn, greedy = OnlyTokens(3, 39), OnlyTokens(7)
    sequences = [
        make_sequence(temperature=1.0, constraint=drawn),
        make_sequence(temperature=0.0),
        make_sequence(temperature=0.0, constraint=greedy, min_tokens=9, frequency_penalty=1.0),
    ]
    logits = make_logits(1, 2, 3)
    free = logits[1].argmax().item()
    sampler = make_sampler()
    for _ in range(3):
        ids = sampler.sample(logits.clone(), sequences)
        assert ids[0] in (3, 39)
        assert ids[1:] == [free, 7]
    assert len(drawn.accepted) == 3
    assert greedy.accepted == [7, 7, 7]
    assert sampler.sample(logits.clone(), sequences)[2] != 7
