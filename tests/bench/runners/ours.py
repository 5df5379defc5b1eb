"""Our engine: `python -m tests.bench.runners.ours MODEL [DTYPE]`."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

from tests.bench.runners.protocol import serve_jobs


def main(model: str, dtype: str = "bfloat16") -> None:
    from qwen_engine import environment

    environment.prepare()
    from qwen_engine.config import EngineConfig
    from qwen_engine.host_memory import StartMemory
    from qwen_engine.llm_engine import LLMEngine
    from qwen_engine.model_config import ModelConfig
    from qwen_engine.sequence import SamplingParams
    from qwen_engine.worker import kv_block

    config = EngineConfig(
        model_path=Path(model),
        dtype=dtype,  # type: ignore[arg-type]
        max_model_len=4096,
        num_gpu_blocks=640,
        block_size=32,
        max_num_seqs=32,
        max_num_batched_tokens=1024,
    )
    shape, kind = kv_block(config, found := ModelConfig.from_folder(config.model_path))
    number = 2 * found.num_layers
    memory = StartMemory.reserve(
        weight_bytes=0,
        cache_bytes=number * config.num_gpu_blocks * math.prod(shape) * kind.itemsize,
        num_parts=number,
    )
    engine = LLMEngine.from_config(config, memory=memory)
    memory.cache.populate_while(lambda: True)  # a server does this in its first quiet moments
    numbers = itertools.count()

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            engine.add_request(str(next(numbers)), prompt, params)
        num_tokens = 0
        while engine.has_unfinished():
            num_tokens += sum(len(output.token_ids) for output in engine.step())
        return num_tokens

    serve_jobs(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])
