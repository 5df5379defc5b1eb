"""How likely tokens were, from logits.

Called by `sampler` for new tokens and by `worker` for those of prompts. Knows no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from qwen_engine.sequence import TokenLogprobs


def score_tokens(
    logits: torch.Tensor, token_ids: Rows[int], num_tops: Rows[int]
) -> list[TokenLogprobs]:
    """Score one token per row of `logits` [num_rows, vocab_size], and its likeliest rivals.

    Synchronises with the device.
    """
    scores = logits.float().log_softmax(dim=-1)
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = scores.gather(1, ids)
    ranks = (scores > chosen).sum(dim=-1) + 1
    best, best_ids = scores.topk(min(max(num_tops, default=0), scores.shape[1]), dim=-1)
    rows = zip(
        token_ids, chosen.squeeze(1).tolist(), ranks.tolist(), best_ids.tolist(), best.tolist(),
        num_tops, strict=True,
    )  # fmt: skip
    return [
        TokenLogprobs(
            token_id, logprob, rank, tuple(zip(top[:wanted], of_top[:wanted], strict=True))
        )
        for token_id, logprob, rank, top, of_top, wanted in rows
    ]
