"""Greedy ids by transformers and by the engine, for the same prompts.

Transformers generates prompts of equal length together, so nothing is padded; each model's
answer is computed once per session. A difference is a failure, however near the tie: the message
gives the margin, so that one can judge.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

from qwen_engine.config import EngineConfig
from qwen_engine.engine_stats import EngineStats
from qwen_engine.llm_engine import LLMEngine, StepOutput
from qwen_engine.model_config import ModelConfig
from qwen_engine.sequence import SamplingParams

Prompt = tuple[int, ...]
NUM_TOKENS = 64


@cache
def load_oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    is_text = ModelConfig.from_folder(folder).traits.skipped_prefix is None
    oracle = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
    model = oracle.from_pretrained(folder, dtype=dtype)
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no eos
    return model.eval()


def make_prompts(folder: Path, lengths: Sequence[int], *, shared: int) -> list[Prompt]:
    """Return a random prompt of each length; those longer than `shared` begin with the same."""
    vocab_size = ModelConfig.from_folder(folder).vocab_size
    source = random.Random(20)
    prefix = source.choices(range(vocab_size), k=shared)
    prompts = []
    for length in lengths:
        start = prefix if length > shared else []
        prompts.append((*start, *source.choices(range(vocab_size), k=length - len(start))))
    return prompts


_expected: dict[tuple[Path, Prompt], list[int]] = {}


def expect_ids(folder: Path, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return what transformers' `generate` says to each prompt."""
    by_length: defaultdict[int, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        if (folder, prompt) not in _expected:
            by_length[len(prompt)].append(prompt)
    for length, group in by_length.items():
        ids = torch.tensor(group)
        with torch.inference_mode():
            output = load_oracle(folder).generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS
            )
        for prompt, answer in zip(group, output[:, length:].tolist(), strict=True):
            _expected[folder, prompt] = answer
    return [_expected[folder, prompt] for prompt in prompts]


def engine_config(folder: Path, **changes: Any) -> EngineConfig:
    settings = {"max_model_len": 256, "num_gpu_blocks": 512, "dtype": "float32", **changes}
    return EngineConfig(model_path=folder, **settings)


def run_engine(
    config: EngineConfig, prompts: Sequence[Prompt], *, num_tokens: int = NUM_TOKENS
) -> tuple[list[list[int]], EngineStats]:
    """Send all prompts at once; return their ids and the engine's numbers at the end."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    outputs, stats = run_requests(config, prompts, params)
    return [[token for o in of_one for token in o.token_ids] for of_one in outputs], stats


def run_requests(
    config: EngineConfig, prompts: Sequence[Prompt], params: SamplingParams
) -> tuple[list[list[StepOutput]], EngineStats]:
    """Send all prompts at once; return what each step said to them and the numbers at the end."""
    engine = LLMEngine.from_config(config)
    outputs: dict[str, list[StepOutput]] = {}
    for index, prompt in enumerate(prompts):
        outputs[str(index)] = []
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished():
        for output in engine.step():
            outputs[output.request_id].append(output)
    return list(outputs.values()), engine.stats()


def assert_same_ids(
    folder: Path, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]
) -> None:
    """Fail at the first id that differs, saying by how little the oracle preferred its own."""
    for prompt, answer, expected in zip(prompts, answers, expect_ids(folder, prompts), strict=True):
        if list(answer) == expected:
            continue
        at = next(i for i, (a, b) in enumerate(zip(answer, expected, strict=True)) if a != b)
        with torch.inference_mode():
            context = torch.tensor([[*prompt, *expected[:at]]])
            logits = load_oracle(folder)(context).logits[0, -1]
        margin = (logits[expected[at]] - logits[answer[at]]).item()
        raise AssertionError(
            f"prompt of {len(prompt)} tokens: token {at} is {answer[at]}, transformers says "
            f"{expected[at]} by a margin of {margin:.2e} (logits' spread {logits.std():.2f})"
        )
