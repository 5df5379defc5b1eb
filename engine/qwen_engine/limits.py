"""What can never be served, refused before it is queued, with the figures.

Called by `llm_engine` for each request. Knows settings and ids, neither text nor the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

from qwen_engine.config import EngineConfig
from qwen_engine.errors import CannotEverFitError, InvalidRequestError, PromptTooLongError
from qwen_engine.sequence import SamplingParams


def max_request_tokens(config: EngineConfig) -> int:
    """Return the tokens that one request may have: the model length or the whole pool."""
    return min(config.max_model_len, config.num_gpu_blocks * config.block_size)


def check_request(
    prompt_token_ids: TokenIds[int],
    params: SamplingParams,
    *,
    config: EngineConfig,
    vocab_size: int,
) -> None:
    """Let pass what can be served.

    Raises:
        RequestError: it never can; the message has the figures.
    """
    _check_ids(prompt_token_ids, params, vocab_size)
    num_tokens = len(prompt_token_ids)
    needed = num_tokens + min(1, params.max_tokens)
    if needed > config.max_model_len:
        raise PromptTooLongError(
            num_prompt_tokens=num_tokens,
            max_tokens=params.max_tokens,
            max_model_len=config.max_model_len,
        )
    if needed > max_request_tokens(config):
        raise CannotEverFitError(
            num_tokens=needed,
            needed=-(-needed // config.block_size),
            total=config.num_gpu_blocks,
            block_size=config.block_size,
        )


def _check_ids(prompt_token_ids: TokenIds[int], params: SamplingParams, vocab_size: int) -> None:
    why = f"token ids are 0 to {vocab_size - 1}"
    if not prompt_token_ids:
        raise InvalidRequestError("prompt", [], "must have at least one token")
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= vocab_size:
        wrong = next(t for t in prompt_token_ids if not 0 <= t < vocab_size)
        raise InvalidRequestError("prompt", wrong, why)
    for token_id, _ in params.logit_bias:
        if token_id >= vocab_size:
            raise InvalidRequestError("logit_bias", token_id, why)
