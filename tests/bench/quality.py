"""What 8 bits cost in quality: perplexity on a fixed text, and how often the likeliest id stays.

`python -m tests.bench.quality` prints a table for SmolLM2-135M-Instruct. Each id of the text is
judged with the text itself as context, so one other choice does not count for all that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qwen_engine.config import EngineConfig
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams, TokenLogprobs
from qwen_engine.tokenizer import Tokenizer
from tests.models.smollm2 import build_smollm2

TEXT = Path(__file__).with_name("text.txt")
CHUNK = 256  # tokens of a step, so that most of the context is read back from the cache
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {},
    "bfloat16, KV int8": {"kv_cache_dtype": "int8"},
    "bfloat16, KV fp8": {"kv_cache_dtype": "fp8"},
    "weights int8": {"quantization": "int8"},
    "weights int8, KV int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
}
BASELINE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a text's tokens, all but the first."""

    perplexity: float
    likeliest: tuple[int, ...]

    def agreement(self, other: Quality) -> float:
        """Return the share of places where the likeliest id is the same."""
        pairs = zip(self.likeliest, other.likeliest, strict=True)
        return fmean(mine == theirs for mine, theirs in pairs)


def read_ids(folder: Path, num_tokens: int | None = None) -> list[int]:
    """Return the text's first tokens."""
    return Tokenizer.from_folder(folder).encode(TEXT.read_text("utf-8"))[:num_tokens]


def measure(folder: Path, ids: list[int], **settings: Any) -> Quality:
    """Score the text by an engine with these settings."""
    config = EngineConfig(
        model_path=folder,
        max_model_len=len(ids) + 1,
        num_gpu_blocks=len(ids) // 16 + 2,
        max_num_batched_tokens=CHUNK,
        **settings,
    )
    engine = LLMEngine.from_config(config)
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    engine.add_request("text", ids, params)
    found: list[TokenLogprobs] = []
    while engine.has_unfinished():
        for output in engine.step():
            found += output.prompt_logprobs
    assert len(found) == len(ids) - 1
    return Quality(
        math.exp(-fmean(token.logprob for token in found)),
        tuple(token.top[0][0] for token in found),
    )


def main() -> None:
    folder = build_smollm2()
    ids = read_ids(folder)
    print(f"{len(ids)} tokens\n\n| engine | perplexity | likeliest id as in {BASELINE} |")
    print("|---|---|---|")
    found = {name: measure(folder, ids, **settings) for name, settings in SETTINGS.items()}
    for name, quality in found.items():
        share = quality.agreement(found[BASELINE])
        print(f"| {name} | {quality.perplexity:.3f} | {share:.1%} |")


if __name__ == "__main__":
    main()
