"""Logits to token ids, for a whole batch at once.

Called by `worker` at the end of a step. Order and meaning follow vLLM's v1/sample/sampler.py:
logprobs are those of the raw logits; then biases are added, stops that come too early and what a
constraint forbids are masked, then penalties, then (unless greedy) temperature, min_p, top_k,
top_p. Knows no model.

Each row consumes one uniform number and inverts the cumulated probabilities with it. So a
seeded request depends on its seed and its position only: not on its neighbours, nor on having
been preempted; and no generator's state has to be kept.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Rows
from hashlib import blake2b
from weakref import WeakKeyDictionary

import torch

from qwen_engine.kernels.largest import largest
from qwen_engine.logprobs import score_tokens
from qwen_engine.sequence import SamplingParams, Sequence

# Without top_k, top_p and min_p look for their cut among so many candidates before all are
# sorted: 151,936 logits sort in about 9 ms a row on a CPU, their 1,024 largest come in 0.6 ms.
NUM_CANDIDATES = 1024


class Sampler:
    """Vectorised over the batch; Python touches each sequence, not each token."""

    def __init__(
        self,
        *,
        seed: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        largest: Callable[[torch.Tensor], torch.Tensor] = largest,
    ) -> None:
        """Draw from `seed` where a request has none; `largest` finds greedy tokens."""
        self._largest = largest
        self._random = random.Random(seed)
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._histories: WeakKeyDictionary[Sequence, _History] = WeakKeyDictionary()

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
        """Return the next token of each sequence, given its logits [num_seqs, vocab_size].

        Changes `logits`. Synchronises with the device once, at the end; once more if logprobs are
        wanted, which go to `last_logprobs` of their sequences.
        """
        scored = [row for row, of_row in enumerate(sequences) if of_row.params.logprobs is not None]
        raw = logits.index_select(0, self._tensor(scored)) if scored else logits
        token_ids = self._choose(logits, sequences)
        if scored:
            of_scored = [sequences[row] for row in scored]
            tops = [sequence.params.logprobs or 0 for sequence in of_scored]
            found = score_tokens(raw, [token_ids[row] for row in scored], tops)
            for sequence, logprobs in zip(of_scored, found, strict=True):
                sequence.last_logprobs = logprobs
        return token_ids

    def _choose(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
        params = [sequence.params for sequence in sequences]
        logits = self._add_biases(logits, params)
        logits = self._mask_early_stops(logits, sequences)
        logits = self._mask_forbidden(logits, params)
        logits = self._penalise(logits, sequences)
        drawn = [row for row, of_row in enumerate(params) if not of_row.is_greedy]
        if len(drawn) < len(params):
            token_ids = self._largest(logits)
        else:
            token_ids = torch.empty(len(params), dtype=torch.int64, device=logits.device)
        if drawn:
            rows = self._tensor(drawn)
            uniforms = [self._uniform(sequences[row]) for row in drawn]
            chosen = self._draw(logits.index_select(0, rows), [params[r] for r in drawn], uniforms)
            token_ids.index_copy_(0, rows, chosen)
        ids: list[int] = token_ids.tolist()
        for of_row, token_id in zip(params, ids, strict=True):
            if of_row.constraint is not None:
                of_row.constraint.accept(token_id)
        return ids

    def _add_biases(self, logits: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
        found = [(row, *bias) for row, of_row in enumerate(params) for bias in of_row.logit_bias]
        if not found:
            return logits
        rows, columns, values = zip(*found, strict=True)
        added = torch.tensor(values, dtype=torch.float32, device=self._device)
        where = (self._tensor(list(rows)), self._tensor(list(columns)))
        return logits.float().index_put_(where, added, accumulate=True)

    def _mask_early_stops(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        rows: list[int] = []
        columns: list[int] = []
        for row, sequence in enumerate(sequences):
            params = sequence.params
            if sequence.num_output_tokens < params.min_tokens and params.constraint is None:
                stops = self._eos_token_ids | params.stop_token_ids
                columns += sorted(stop for stop in stops if stop < logits.shape[1])
                rows += [row] * (len(columns) - len(rows))
        if rows:
            logits[self._tensor(rows), self._tensor(columns)] = -torch.inf
        return logits

    def _mask_forbidden(self, logits: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
        rows, masks = [], []
        for row, of_row in enumerate(params):
            mask = None if of_row.constraint is None else of_row.constraint.allowed()
            if mask is not None:
                rows.append(row)
                masks.append(torch.frombuffer(bytearray(mask), dtype=torch.uint8))
        if not rows:
            return logits
        # Packed until they are on the device: 19 KB a row for 151,936 tokens.
        packed = torch.stack(masks).to(self._device)
        places = torch.arange(8, dtype=torch.uint8, device=self._device)
        is_allowed = (packed.unsqueeze(-1) >> places & 1).flatten(1)[:, : logits.shape[1]].bool()
        where = self._tensor(rows)
        kept = logits.index_select(0, where).masked_fill_(~is_allowed, -torch.inf)
        return logits.index_copy_(0, where, kept)

    def _penalise(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
        rows = [row for row, sequence in enumerate(sequences) if sequence.params.has_penalties]
        if not rows:
            return logits
        params = [sequences[row].params for row in rows]
        histories = [self._history(sequences[row], logits.shape[1]) for row in rows]
        seen = torch.stack([history.is_seen for history in histories])
        counts = torch.stack([history.output_counts for history in histories])
        where = self._tensor(rows)
        some = logits.index_select(0, where).float()
        repetition = self._column(params, lambda p: p.repetition_penalty)
        some = torch.where(seen, torch.where(some > 0, some / repetition, some * repetition), some)
        some -= self._column(params, lambda p: p.frequency_penalty) * counts
        some -= self._column(params, lambda p: p.presence_penalty) * (counts > 0)
        logits = logits.float()
        return logits.index_copy_(0, where, some)

    def _history(self, sequence: Sequence, vocab_size: int) -> _History:
        history = self._histories.get(sequence)
        if history is None:
            history = self._histories[sequence] = _History(vocab_size, self._device)
        history.update(sequence)
        return history

    def _draw(
        self, logits: torch.Tensor, params: Rows[SamplingParams], uniforms: Rows[float]
    ) -> torch.Tensor:
        """Draw from each row; rows that are cut alike go together."""
        logits = logits.float() / self._column(params, lambda p: p.temperature)
        uniform = torch.tensor(uniforms, dtype=torch.float64, device=self._device).unsqueeze(1)
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for row, of_row in enumerate(params):
            groups[self._num_candidates(of_row, logits.shape[1])].append(row)
        token_ids = torch.empty(len(params), dtype=torch.int64, device=self._device)
        for num_candidates, rows in groups.items():
            where = self._tensor(rows)
            some, of_some = logits.index_select(0, where), [params[row] for row in rows]
            some_uniform = uniform.index_select(0, where)
            if num_candidates == 0:
                chosen = _invert(some.softmax(dim=-1), some_uniform)
            else:
                chosen = self._draw_cut(some, of_some, some_uniform, num_candidates)
            token_ids.index_copy_(0, where, chosen)
        return token_ids

    def _num_candidates(self, params: SamplingParams, vocab_size: int) -> int:
        """Return how many of the largest logits can be drawn; 0 for all, uncut.

        A function of the row's own parameters, so that neighbours never change how a row is cut.
        """
        if params.top_k > 0:
            return min(1 << (params.top_k - 1).bit_length(), vocab_size)
        if params.top_p < 1 or params.min_p > 0:
            # On CUDA, sorting all is cheap and asking whether it was needed would synchronise.
            return vocab_size if self._device.type == "cuda" else min(NUM_CANDIDATES, vocab_size)
        return 0

    def _draw_cut(
        self,
        logits: torch.Tensor,
        params: Rows[SamplingParams],
        uniform: torch.Tensor,
        num_candidates: int,
    ) -> torch.Tensor:
        top_k = self._column(params, lambda p: p.top_k)
        top_p = self._column(params, lambda p: p.top_p)
        min_p = self._column(params, lambda p: p.min_p)
        floor = logits.amax(dim=-1, keepdim=True) + min_p.log()  # log 0 is -inf: cuts nothing
        logits = logits.masked_fill(logits < floor, -torch.inf)
        values, ids = logits.topk(num_candidates, dim=-1)
        ranks = torch.arange(num_candidates, device=self._device)
        values = values.masked_fill((top_k > 0) & (ranks >= top_k), -torch.inf)
        # What top_p is a share of: all that top_k and min_p have left.
        whole = torch.where(
            top_k > 0,
            values.logsumexp(dim=-1, keepdim=True),
            logits.logsumexp(dim=-1, keepdim=True),
        )
        probs = (values - whole).exp()
        cumulated = probs.cumsum(dim=-1)
        chosen = ids.gather(
            1, _invert(probs * (cumulated - probs < top_p), uniform).unsqueeze(1)
        ).squeeze(1)
        if self._device.type == "cuda" or num_candidates == logits.shape[1]:
            return chosen
        is_short = (
            (top_k <= 0) & (values[:, -1:] > -torch.inf) & (cumulated[:, -1:] < top_p)
        ).squeeze(1)
        short = is_short.nonzero().squeeze(1)
        if len(short):  # a flat distribution: the cut lies beyond the candidates
            of_short = [params[row] for row in short.tolist()]
            chosen[short] = self._draw_cut(logits[short], of_short, uniform[short], logits.shape[1])
        return chosen

    def _uniform(self, sequence: Sequence) -> float:
        """Return a number in [0, 1): by seed and position if there is a seed, else the next."""
        seed = sequence.params.seed
        if seed is None:
            return self._random.random()
        text = f"{seed}/{sequence.num_output_tokens}".encode()
        return (int.from_bytes(blake2b(text, digest_size=8).digest()) >> 11) * 2.0**-53

    def _tensor(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def _column(
        self, params: Rows[SamplingParams], read: Callable[[SamplingParams], float]
    ) -> torch.Tensor:
        values = [read(of_row) for of_row in params]
        return torch.tensor(values, dtype=torch.float32, device=self._device).unsqueeze(1)


class _History:
    """Which tokens a sequence has so far; kept between steps, so each token is counted once."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.is_seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.output_counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._num_counted = 0

    def update(self, sequence: Sequence) -> None:
        fresh = sequence.token_ids[self._num_counted :]
        first_output = max(sequence.num_prompt_tokens - self._num_counted, 0)
        new = torch.tensor(fresh, dtype=torch.int64, device=self.is_seen.device)
        output = new[first_output:]
        self.is_seen[new] = True
        self.output_counts.index_add_(0, output, torch.ones_like(output, dtype=torch.float32))
        self._num_counted = sequence.num_tokens


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return per row the index that `uniform` [rows, 1] falls on; never one of weight 0."""
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    # Strictly below the total, whatever the rounding: then the first index whose cumulated
    # weight is above the target exists and has a weight of its own.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulated, target, right=True)
    return index.clamp_(max=weights.shape[1] - 1).squeeze(1)  # NaN weights: stay in range
